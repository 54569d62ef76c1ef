//! Take the values of tables from a checkpoint: of those that are there, or of those that will be made. What has been applied
//! stays as it is: loading is an action of the script, not a return to an earlier moment.

use super::{Request, from_json, now, to_json};
use crate::error::Result;
use crate::frame::Payload;
pub(crate) use crate::server::Load;
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub(crate) struct LoadRequest(pub Load);

impl Request for LoadRequest {
    const NAME: &'static str = "load";
    const IS_SLOW: bool = true;

    fn encode(&self) -> Result<Payload> {
        to_json(&self.0, "load")
    }

    fn decode(payload: Payload) -> Result<Self> {
        Ok(LoadRequest(from_json(payload.bytes(), "load")?))
    }

    /// The answer is what the program kept beside its tables. Idempotent.
    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        let mut states = Payload::new();
        states.put(&server.load(&self.0)?);
        now(states)
    }
}
