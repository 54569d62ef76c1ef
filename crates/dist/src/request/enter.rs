//! A worker enters the job: it joins the servers' generation, or makes them begin the next one.

use super::{Request, from_json, now, to_json};
use crate::error::Result;
use crate::frame::Payload;
use crate::server::{Caller, Enter, Entered, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub struct EnterRequest(pub Enter);

impl Request for EnterRequest {
    const NAME: &'static str = "enter";
    const IS_SLOW: bool = true;
    const ENTERS: bool = true;

    fn encode(&self) -> Result<Payload> {
        to_json(&self.0, "enter")
    }

    fn decode(payload: Payload) -> Result<Self> {
        Ok(EnterRequest(from_json(payload.bytes(), "enter")?))
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        now(to_json(&server.enter(caller, &self.0)?, "reply to an enter")?)
    }
}

/// Decodes a reply.
pub fn decode(reply: &[u8]) -> Result<Entered> {
    from_json(reply, "reply to an enter")
}
