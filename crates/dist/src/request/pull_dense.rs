//! Values of dense blocks: all that one server keeps, in one request.
//!
//! The answer is their values, one block after the other, in the order asked for.

use super::check_answer;
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::State;

/// Encodes a request.
pub fn encode(payload: &mut Payload, blocks: &[u32]) {
    payload.clear();
    payload.put(&[blocks.len() as u32]);
    payload.put(blocks);
}

/// Answers a request.
pub fn apply(state: &State, payload: &[u8]) -> Result<Payload> {
    let mut reader = Reader::new(payload);
    let count = reader.one::<u32>()?;
    let blocks = reader.take::<u32>(count as usize)?;
    reader.end()?;
    let mut reply = Payload::new();
    put_values(state, blocks.iter().copied(), &mut reply)?;
    Ok(reply)
}

/// Writes the values of blocks, as answers carry them.
pub(crate) fn put_values(state: &State, blocks: impl Iterator<Item = u32>, reply: &mut Payload) -> Result<()> {
    for block in blocks {
        let block = state.dense(block)?;
        check_answer(reply, block.table.len())?;
        let values = reply.room::<f32>(block.table.len());
        block.table.pull(values).map_err(|error| block.error("pulling from", error))?;
    }
    Ok(())
}
