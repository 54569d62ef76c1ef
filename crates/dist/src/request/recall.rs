//! A restarted worker has reached a collective whose result was too large to record: all workers have to restart and repeat it
//! together. The tables stay.

use super::{Request, now};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recall {
    /// Number of the collective.
    pub number: u64,
}

impl Request for Recall {
    const NAME: &'static str = "recall";
    const IS_SLOW: bool = true;

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.number]);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let number = reader.one()?;
        reader.end()?;
        Ok(Recall { number })
    }

    /// The reply tells whether it was necessary.
    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        let mut payload = Payload::new();
        payload.put(&[u64::from(server.recall(caller, self.number))]);
        now(payload)
    }
}
