//! A stream takes part no more until its next pass: the others go on with one divisor less.

use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::State;

/// Encodes a request; `change` as in [`join`](super::join).
pub fn encode(payload: &mut Payload, stream: u32, change: u64) {
    payload.clear();
    payload.put(&[stream]);
    payload.put(&[change]);
}

/// Answers a request. Leaving twice is leaving once.
pub fn apply(state: &State, worker: u32, payload: &[u8]) -> Result<Payload> {
    let mut reader = Reader::new(payload);
    let stream = reader.one::<u32>()?;
    let change = reader.one::<u64>()?;
    reader.end()?;
    state.leave(worker, stream, change)?;
    Ok(Payload::new())
}
