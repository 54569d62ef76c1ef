//! Values of dense blocks: all that one server keeps, in one request.
//!
//! The answer is their values, one block after the other, in the order asked for.

use openfleet_core::strategy::FloatWidth;

use super::{check_answer, put_width, take_width};
use crate::error::Result;
use crate::floats;
use crate::frame::{Payload, Reader};
use crate::server::State;

/// Encodes a request.
pub fn encode(payload: &mut Payload, width: FloatWidth, blocks: &[u32]) {
    payload.clear();
    payload.put(&[blocks.len() as u32, put_width(width)]);
    payload.put(blocks);
}

/// Answers a request.
pub fn apply(state: &State, payload: &[u8]) -> Result<Payload> {
    let mut reader = Reader::new(payload);
    let head = reader.take::<u32>(2)?;
    let width = take_width(head[1])?;
    let blocks = reader.take::<u32>(head[0] as usize)?;
    reader.end()?;
    let mut reply = Payload::new();
    put_values(state, width, blocks.iter().copied(), &mut reply)?;
    Ok(reply)
}

/// Writes the values of blocks, as answers carry them.
pub(crate) fn put_values(
    state: &State,
    width: FloatWidth,
    blocks: impl Iterator<Item = u32>,
    reply: &mut Payload,
) -> Result<()> {
    for block in blocks {
        let block = state.dense(block)?;
        check_answer(reply, block.table.len())?;
        floats::fill(reply, width, block.table.len(), |values| block.table.pull(values))
            .map_err(|error| block.error("pulling from", error))?;
    }
    Ok(())
}
