//! Wait until every worker of the job has asked for the same barrier.

use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Outcome, State};

/// Encodes a request: the how-many-th barrier, and how many take part.
pub fn encode(payload: &mut Payload, number: u64, parties: u32) {
    payload.clear();
    payload.put(&[number]);
    payload.put(&[parties]);
}

/// Answers when the last one asks.
pub fn apply(state: &State, worker: u32, payload: &[u8]) -> Result<Outcome> {
    let mut reader = Reader::new(payload);
    let number = reader.one::<u64>()?;
    let parties = reader.one::<u32>()?;
    reader.end()?;
    Ok(state.barrier(worker, number, parties))
}
