//! Gradients of sparse rows and dense blocks: those of one step of a stream, or of several steps merged.
//!
//! Every push names its work, and a server applies a piece of work once: a repeat is answered as the first was, with the
//! values as they are now. In sync mode the answer comes when every member of the group has pushed the step and it has
//! been applied; otherwise at once.

use openfleet_core::WorkId;

use super::{KeysView, put_keys, take_keys};
use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};

/// Begins a request. `want_values` asks for the new values of the blocks pushed; the counts say what will be added.
pub fn begin(payload: &mut Payload, work: WorkId, want_values: bool, stages: usize, blocks: usize) {
    payload.clear();
    payload.put(&[work.stream, u32::from(want_values), stages as u32, blocks as u32]);
    payload.put(&[work.first_step, work.last_step]);
}

/// Adds the keys of a stage; then, for each of its tables, the gradients go into the room that [`gradients`] gives.
pub fn add_stage(payload: &mut Payload, tables: &[u32], dims: &[u32], keys: &[u64]) {
    put_keys(payload, tables, dims, keys);
}

/// Room for the gradients of the next table of the stage, `keys x dim`.
pub fn gradients(payload: &mut Payload, keys: usize, dim: usize) -> &mut [f32] {
    payload.room(keys * dim)
}

/// Adds the gradient of a dense block.
pub fn add_block(payload: &mut Payload, block: u32, gradient: &[f32]) {
    payload.put(&[block, gradient.len() as u32]);
    payload.put(gradient);
}

/// A push, read in place.
#[derive(Debug)]
pub struct PushView<'a> {
    /// What it stands for.
    pub work: WorkId,
    /// Whether the new values of its blocks are wanted.
    pub want_values: bool,
    /// Keys with, for each table, the gradients of their rows.
    pub stages: Vec<(KeysView<'a>, Vec<&'a [f32]>)>,
    /// Block and gradient.
    pub blocks: Vec<(u32, &'a [f32])>,
}

/// The most stages or blocks a push may have: a bound on what is allocated for the lists.
const MOST: u32 = 1 << 16;

impl<'a> PushView<'a> {
    /// Reads a request.
    pub fn decode(payload: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(payload);
        let head = reader.take::<u32>(4)?;
        let steps = reader.take::<u64>(2)?;
        if head[2] > MOST || head[3] > MOST || steps[0] > steps[1] {
            return Err(Error::Damaged { what: "push: its counts make no sense" });
        }
        let mut stages = Vec::with_capacity(head[2] as usize);
        for _ in 0..head[2] {
            let keys = take_keys(&mut reader)?;
            let gradients = keys
                .dims
                .iter()
                .map(|&dim| reader.take(keys.keys.len().saturating_mul(dim as usize)))
                .collect::<Result<_>>()?;
            stages.push((keys, gradients));
        }
        let mut blocks = Vec::with_capacity(head[3] as usize);
        for _ in 0..head[3] {
            let block = reader.take::<u32>(2)?;
            blocks.push((block[0], reader.take(block[1] as usize)?));
        }
        reader.end()?;
        let work = WorkId { stream: head[0], first_step: steps[0], last_step: steps[1] };
        Ok(PushView { work, want_values: head[1] == 1, stages, blocks })
    }
}
