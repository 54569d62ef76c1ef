//! GEO: a worker was asked for all that it has learnt, and has sent it.

use super::{Request, done, unsent::Unsent};
use crate::error::Result;
use crate::frame::Payload;
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub struct Sent {
    /// That of the [`Unsent`] that asked for it.
    pub ticket: u64,
}

impl Request for Sent {
    const NAME: &'static str = "sent";

    fn encode(&self) -> Result<Payload> {
        Unsent { ticket: self.ticket }.encode()
    }

    fn decode(payload: Payload) -> Result<Self> {
        let Unsent { ticket } = Unsent::decode(payload)?;
        Ok(Sent { ticket })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        server.sent(caller, self.ticket);
        done()
    }
}
