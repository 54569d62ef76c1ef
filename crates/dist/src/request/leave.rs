//! A stream has no more work: the others go on with one divisor less.

use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::State;

/// Encodes a request.
pub fn encode(payload: &mut Payload, stream: u32) {
    payload.clear();
    payload.put(&[stream]);
}

/// Answers a request. Leaving twice is leaving once.
pub fn apply(state: &State, payload: &[u8]) -> Result<Payload> {
    let mut reader = Reader::new(payload);
    let stream = reader.one::<u32>()?;
    reader.end()?;
    state.leave(stream)?;
    Ok(Payload::new())
}
