//! A stream leaves a pass: the others continue, and means are divided by one less. Idempotent.

use super::{Request, done, join::Join};
use crate::error::Result;
use crate::frame::Payload;
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub struct Leave {
    /// Number of the stream.
    pub stream: u32,
    /// The pass, counted from 1 by the worker's script.
    pub pass: u64,
}

impl Request for Leave {
    const NAME: &'static str = "leave";

    fn encode(&self) -> Result<Payload> {
        let &Leave { stream, pass } = self;
        Join { stream, pass }.encode()
    }

    fn decode(payload: Payload) -> Result<Self> {
        let Join { stream, pass } = Join::decode(payload)?;
        Ok(Leave { stream, pass })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        server.leave(caller, self.stream, self.pass)?;
        done()
    }
}
