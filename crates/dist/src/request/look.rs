//! What a worker sees of a server before it enters the job.

use super::{Request, from_json, now, to_json};
use crate::error::Result;
use crate::frame::Payload;
use crate::server::{Caller, Outcome, Seen, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub struct Look;

impl Request for Look {
    const NAME: &'static str = "look";
    const ENTERS: bool = true;

    fn encode(&self) -> Result<Payload> {
        Ok(Payload::new())
    }

    fn decode(_payload: Payload) -> Result<Self> {
        Ok(Look)
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        now(to_json(&server.seen_by(caller), "answer to a look")?)
    }
}

/// Reads an answer.
pub fn decode(reply: &[u8]) -> Result<Seen> {
    from_json(reply, "answer to a look")
}
