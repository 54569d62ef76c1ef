//! GEO: a worker was asked for all that it has learnt, and has sent it.

use super::{Request, done};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub struct Sent {
    /// That of the [`Unsent`](super::unsent::Unsent) that asked for it.
    pub ticket: u64,
}

impl Request for Sent {
    const NAME: &'static str = "sent";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.ticket]);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let ticket = reader.one()?;
        reader.end()?;
        Ok(Sent { ticket })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        server.sent(caller, self.ticket);
        done()
    }
}
