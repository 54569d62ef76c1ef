//! A worker is done, whether it ever created tables or not: no other worker waits for it any more. The server stops when all
//! workers have departed. Departing means success; a process that fails or is killed has not departed.

use super::{Request, done};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Depart {
    /// Number of workers in the job.
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
