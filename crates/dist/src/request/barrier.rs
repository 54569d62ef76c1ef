//! Wait until every worker that has not departed has come here too.
//!
//! Barriers, all-reduces and all-to-alls of a job are numbered together, by each worker alike: who meets whom is then never
//! in doubt.

use super::Request;
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Collective, Contribution, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Barrier {
    /// Its number among the worker's collectives, from 0.
    pub number: u64,
    /// How many workers the job has.
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

    /// Answers when the last one asks.
    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        let Barrier { number, workers } = self;
        server.arrive(caller, number, Collective::Barrier { workers }, Contribution::Nothing)
    }
}
