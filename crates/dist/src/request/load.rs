//! Loads tables from a checkpoint: the existing ones, or those that will be created. The record of applied pushes stays:
//! loading is an action of the script, not a return to a checkpoint.

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

    /// The reply is the program's own state. Idempotent.
    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        let mut states = Payload::new();
        states.put(&server.load(&self.0)?);
        now(states)
    }
}
