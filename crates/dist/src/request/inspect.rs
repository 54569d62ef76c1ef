//! Asks for what a worker has to know about a server before it enters the job.

use super::{Request, from_json, now, to_json};
use crate::error::Result;
use crate::frame::Payload;
use crate::server::{Caller, Outcome, ServerView, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub struct Inspect;

impl Request for Inspect {
    const NAME: &'static str = "inspect";
    const ENTERS: bool = true;

    fn encode(&self) -> Result<Payload> {
        Ok(Payload::new())
    }

    fn decode(_payload: Payload) -> Result<Self> {
        Ok(Inspect)
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        now(to_json(&server.view_for(caller), "reply to an inspect")?)
    }
}

/// Decodes a reply.
pub fn decode(reply: &[u8]) -> Result<ServerView> {
    from_json(reply, "reply to an inspect")
}
