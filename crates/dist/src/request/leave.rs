//! A stream takes part no more, until its next pass or for good: the others go on with one divisor less.

use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::State;

/// Encodes a request; `change` as in [`join`](super::join).
pub fn encode(payload: &mut Payload, stream: u32, change: u64, for_good: bool) {
    payload.clear();
    payload.put(&[stream, u32::from(for_good)]);
    payload.put(&[change]);
}

/// Answers a request. Leaving twice is leaving once.
pub fn apply(state: &State, payload: &[u8]) -> Result<Payload> {
    let mut reader = Reader::new(payload);
    let head = reader.take::<u32>(2)?;
    let change = reader.one::<u64>()?;
    reader.end()?;
    state.leave(head[0], change, head[1] == 1)?;
    Ok(Payload::new())
}
