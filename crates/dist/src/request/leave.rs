//! A stream takes part no more, until its next pass or for good: the others go on with one divisor less.

use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::State;

/// Encodes a request.
pub fn encode(payload: &mut Payload, stream: u32, for_good: bool) {
    payload.clear();
    payload.put(&[stream, u32::from(for_good)]);
}

/// Answers a request. Leaving twice is leaving once.
pub fn apply(state: &State, payload: &[u8]) -> Result<Payload> {
    let mut reader = Reader::new(payload);
    let head = reader.take::<u32>(2)?;
    reader.end()?;
    state.leave(head[0], head[1] == 1);
    Ok(Payload::new())
}
