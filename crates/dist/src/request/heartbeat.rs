//! A sign of life, answered with who is missing: so the death of a worker reaches all others within a second or two.

use super::{Request, from_json, now, to_json};
use crate::error::Result;
use crate::frame::Payload;
use crate::server::{Absent, Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub struct Heartbeat;

impl Request for Heartbeat {
    const NAME: &'static str = "heartbeat";
    const ENTERS: bool = true;

    fn encode(&self) -> Result<Payload> {
        Ok(Payload::new())
    }

    fn decode(_payload: Payload) -> Result<Self> {
        Ok(Heartbeat)
    }

    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        // Whoever is alive moves the clock on.
        server.tick();
        let absent = server.absent();
        if absent.is_empty() { super::done() } else { now(to_json(&absent, "absent workers")?) }
    }
}

/// Reads an answer: workers that are missing.
pub fn decode(reply: &[u8]) -> Result<Vec<Absent>> {
    if reply.is_empty() { Ok(Vec::new()) } else { from_json(reply, "absent workers") }
}
