//! A stream joins a pass; answered when every other stream of its group has joined it too, has left it, or has departed.
//!
//! This keeps the passes of all workers aligned: a worker that is done early waits for the others to end their pass before it
//! begins the next one, and all begin at the same step on every server. Idempotent.

use super::Request;
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub struct Join {
    /// Number of the stream.
    pub stream: u32,
    /// The pass, counted from 1 by the worker's script.
    pub pass: u64,
}

impl Request for Join {
    const NAME: &'static str = "join";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.stream]);
        payload.put(&[self.pass]);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let (stream, pass) = (reader.one()?, reader.one()?);
        reader.end()?;
        Ok(Join { stream, pass })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        server.join(caller, self.stream, self.pass)
    }
}

/// Decodes a reply: the group's step.
pub fn decode(reply: &[u8]) -> Result<u64> {
    Reader::new(reply).one()
}
