//! A worker's script begins or completes an action that a restarted script must not repeat: see the server's journal.

use serde::{Deserialize, Serialize};

use super::{Request, done, from_json, now, to_json};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::server::{Action, ActionKind, Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub struct ActionRequest {
    /// What the script does.
    pub step: ScriptStep,
    /// With a completed action: the programs' own state, outside of their tables.
    pub states: Vec<u8>,
}

/// What the script does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ScriptStep {
    /// Begins an action; the reply is the recorded action if it is already complete.
    Begin {
        /// Kind of action.
        kind: ActionKind,
        /// Its number among the actions of its kind, from 0.
        number: u64,
        /// Description of the action, the same in every replay of the script.
        what: String,
        /// Whether this process began an action with this number before, and it failed.
        again: bool,
    },
    /// Completes an action.
    Complete {
        /// Kind of action.
        kind: ActionKind,
        /// Its number among the actions of its kind, from 0.
        number: u64,
        /// The action and its result.
        action: Action,
    },
}

impl Request for ActionRequest {
    const NAME: &'static str = "action";

    /// The length of the JSON, the JSON, then the states.
    fn encode(&self) -> Result<Payload> {
        let json = serde_json::to_vec(&self.step).map_err(|_| Error::Damaged { what: "action" })?;
        let mut payload = Payload::new();
        payload.put(&[json.len() as u64]);
        payload.put(&json);
        payload.put(&[self.states.len() as u64]);
        payload.put(&self.states);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = crate::frame::Reader::new(payload.bytes());
        let length = |length: u64| usize::try_from(length).unwrap_or(usize::MAX);
        let count = length(reader.one::<u64>()?);
        let step = from_json(reader.take::<u8>(count)?, "action")?;
        let count = length(reader.one::<u64>()?);
        let states = reader.take::<u8>(count)?.to_vec();
        reader.end()?;
        Ok(ActionRequest { step, states })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        match self.step {
            ScriptStep::Begin { kind, number, what, again } => {
                now(to_json(&server.begin_action(caller, kind, number, &what, again)?, "reply to an action")?)
            }
            ScriptStep::Complete { kind, number, action } => {
                server.complete_action(caller, kind, number, action, self.states)?;
                done()
            }
        }
    }
}

/// Decodes the reply to the start of an action.
pub fn decode(reply: &[u8]) -> Result<Option<Action>> {
    from_json(reply, "reply to an action")
}
