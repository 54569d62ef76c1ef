//! The status of a server: rows, steps, positions of the streams, and who it waits for.

use super::{Request, from_json, now, to_json};
use crate::error::Result;
use crate::frame::Payload;
pub use crate::server::Status;
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub struct StatusRequest;

impl Request for StatusRequest {
    const NAME: &'static str = "status";
    const ENTERS: bool = true;

    fn encode(&self) -> Result<Payload> {
        Ok(Payload::new())
    }

    fn decode(_payload: Payload) -> Result<Self> {
        Ok(StatusRequest)
    }

    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        now(to_json(&server.status(), "status")?)
    }
}

/// Decodes a reply.
pub fn decode(reply: &[u8]) -> Result<Status> {
    from_json(reply, "status")
}
