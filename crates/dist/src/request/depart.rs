//! A worker is done for good, whether it ever made tables or not: nobody waits for it any more. The server ends when all
//! have said so.

use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::State;

/// Encodes a request: how many workers the job has.
pub fn encode(payload: &mut Payload, workers: u32) {
    payload.clear();
    payload.put(&[workers]);
}

/// Answers a request. Departing twice is departing once.
pub fn apply(state: &State, worker: u32, payload: &[u8]) -> Result<Payload> {
    let mut reader = Reader::new(payload);
    let workers = reader.one::<u32>()?;
    reader.end()?;
    state.depart(worker, workers)?;
    Ok(Payload::new())
}
