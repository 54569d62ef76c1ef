//! A heartbeat. The reply lists missing workers, so the death of a worker is known to all others within a second or two.

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
        // Heartbeats also make the server check its timeouts.
        server.tick();
        let absent = server.absent();
        if absent.is_empty() { super::done() } else { now(to_json(&absent, "absent workers")?) }
    }
}

/// Decodes a reply: the missing workers.
pub fn decode(reply: &[u8]) -> Result<Vec<Absent>> {
    if reply.is_empty() { Ok(Vec::new()) } else { from_json(reply, "absent workers") }
}
