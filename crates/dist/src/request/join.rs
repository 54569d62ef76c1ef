//! A stream takes part from now on; answered with the step, when every stream that has not left for good has asked.
//!
//! Waiting here is what keeps the passes of all workers aligned: whoever is done early waits for the others' pass to end
//! before the next one begins, and all begin at the same step on every server.

use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Outcome, State};

/// Encodes a request. `change` numbers the joins and leaves of a stream, so that a late repeat of one is known as such.
pub fn encode(payload: &mut Payload, stream: u32, change: u64) {
    payload.clear();
    payload.put(&[stream]);
    payload.put(&[change]);
}

/// Reads an answer: the group's step.
pub fn decode(reply: &[u8]) -> Result<u64> {
    Reader::new(reply).one()
}

/// Answers when all have asked.
pub fn apply(state: &State, worker: u32, payload: &[u8]) -> Result<Outcome> {
    let mut reader = Reader::new(payload);
    let stream = reader.one::<u32>()?;
    let change = reader.one::<u64>()?;
    reader.end()?;
    state.join(worker, stream, change)
}
