//! Wait until every worker that has not left has come here too.
//!
//! Barriers, all-reduces and all-to-alls of a job are numbered together, by each worker alike: who meets whom is then never in doubt.

use super::all_reduce::Collective;
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Brought, Outcome, State};

/// Encodes a request: the how-many-th collective, and how many workers the job has.
pub fn encode(payload: &mut Payload, number: u64, workers: u32) {
    payload.clear();
    payload.put(&[number]);
    payload.put(&[workers]);
}

/// Answers when the last one asks.
pub fn apply(state: &State, worker: u32, payload: &[u8]) -> Result<Outcome> {
    let mut reader = Reader::new(payload);
    let number = reader.one::<u64>()?;
    let workers = reader.one::<u32>()?;
    reader.end()?;
    state.meet(worker, number, Collective::Barrier { workers }, Brought::Nothing)
}
