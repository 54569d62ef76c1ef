//! A worker is done, whether it ever made tables or not: nobody waits for it any more. The server ends when all are done.
//! Departing is a statement of success; a process that fails or is killed has not departed.

use super::{Request, done};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Depart {
    /// How many workers the job has.
    pub workers: u32,
}

impl Request for Depart {
    const NAME: &'static str = "depart";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.workers]);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let workers = reader.one()?;
        reader.end()?;
        Ok(Depart { workers })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        server.depart(caller.rank, self.workers)?;
        done()
    }
}
