//! Waits until every worker that has not departed has arrived at the barrier.
//!
//! Barriers, all-reduces and all-to-alls of a job share one sequence of numbers, which every worker counts in the same way, so
//! it is always clear which calls belong together.

use super::Request;
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Collective, Contribution, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Barrier {
    /// Its number among the worker's collectives, from 0.
    pub number: u64,
    /// Number of workers in the job.
    pub workers: u32,
}

impl Request for Barrier {
    const NAME: &'static str = "barrier";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.number]);
        payload.put(&[self.workers]);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let (number, workers) = (reader.one()?, reader.one()?);
        reader.end()?;
        Ok(Barrier { number, workers })
    }

    /// Replies when the last worker has arrived.
    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        let Barrier { number, workers } = self;
        server.arrive(caller, number, Collective::Barrier { workers }, Contribution::Nothing)
    }
}
