//! Gradients of sparse rows and dense blocks: those of one step of a stream, or of several steps merged.
//!
//! Every push names its work, and a server applies a piece of work once: a repeat is answered as the first was, with the
//! values as they are now. In sync mode the answer comes when every member of the group has pushed the step and it has
//! been applied; otherwise at once.

use std::borrow::Cow;

use openfleet_core::WorkId;
use openfleet_core::strategy::FloatWidth;
use openfleet_table::ShowClick;

use super::{KeysView, put_keys, take_keys};
use crate::error::{Error, Result};
use crate::floats;
use crate::frame::{Payload, Reader};

/// What a push is, before what is in it.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    /// What it stands for.
    pub work: WorkId,
    /// Whether the new values of its blocks are wanted.
    pub want_values: bool,
    /// How the floats of the push and of its answer travel.
    pub width: FloatWidth,
    /// Whether shows and clicks come with the stages, by [`add_counts`].
    pub counted: bool,
}

impl Head {
    /// A push that wants nothing back, with floats as they are.
    pub fn of(work: WorkId) -> Self {
        Head { work, want_values: false, width: FloatWidth::Bits32, counted: false }
    }
}

/// The bits of a head's flags.
const WANT_VALUES: u32 = 1;
const NARROW: u32 = 2;
const COUNTED: u32 = 4;

/// Begins a request; the counts say what will be added.
pub fn begin(payload: &mut Payload, head: Head, stages: usize, blocks: usize) {
    payload.clear();
    let wants = if head.want_values { WANT_VALUES } else { 0 };
    let narrow = if head.width == FloatWidth::Bits16 { NARROW } else { 0 };
    let counted = if head.counted { COUNTED } else { 0 };
    payload.put(&[head.work.stream, wants | narrow | counted, stages as u32, blocks as u32]);
    payload.put(&[head.work.first_step, head.work.last_step]);
}

/// Adds the keys of a stage; then follow the gradients of each of its tables, by [`add_gradients`].
pub fn add_stage(payload: &mut Payload, tables: &[u32], dims: &[u32], keys: &[u64]) {
    put_keys(payload, tables, dims, keys);
}

/// Adds the gradients of the next table of the stage: those of its keys, row by row.
pub fn add_gradients<'a>(
    payload: &mut Payload,
    width: FloatWidth,
    keys: usize,
    dim: usize,
    rows: impl Iterator<Item = &'a [f32]>,
) {
    floats::put_rows(payload, width, keys, dim, rows);
}

/// Adds, after all gradients of a stage of a counted push, the shows and clicks of its keys, or that it has none. They keep
/// their 32 bits: a count that is rounded is none.
pub fn add_counts(
    payload: &mut Payload,
    counts: Option<(impl Iterator<Item = f32>, impl Iterator<Item = f32>)>,
    keys: usize,
) {
    payload.put(&[u64::from(counts.is_some())]);
    if let Some((show, click)) = counts {
        let fill = |room: &mut [f32], from: &mut dyn Iterator<Item = f32>| {
            room.iter_mut().zip(from).for_each(|(room, count)| *room = count);
        };
        fill(payload.room(keys), &mut { show });
        fill(payload.room(keys), &mut { click });
    }
}

/// Adds the gradient of a dense block.
pub fn add_block(payload: &mut Payload, width: FloatWidth, block: u32, gradient: &[f32]) {
    payload.put(&[block, gradient.len() as u32]);
    floats::put(payload, width, gradient);
}

/// A push, read in place.
#[derive(Debug)]
pub struct PushView<'a> {
    /// What it stands for.
    pub work: WorkId,
    /// Whether the new values of its blocks are wanted.
    pub want_values: bool,
    /// How its floats travelled.
    pub width: FloatWidth,
    /// Whether shows and clicks came with the stages.
    pub counted: bool,
    /// Keys with, for each table, the gradients of their rows.
    pub stages: Vec<PushedStage<'a>>,
    /// Block and gradient.
    pub blocks: Vec<(u32, Cow<'a, [f32]>)>,
}

/// The keys of a stage and what is pushed to them.
#[derive(Debug)]
pub struct PushedStage<'a> {
    /// The keys, and which tables have them.
    pub keys: KeysView<'a>,
    /// For each table, the gradients of their rows.
    pub gradients: Vec<Cow<'a, [f32]>>,
    /// What is behind each key, where it was counted.
    pub show_click: Option<ShowClick<'a>>,
}

/// The most stages or blocks a push may have: a bound on what is allocated for the lists.
const MOST: u32 = 1 << 16;

impl<'a> PushView<'a> {
    /// Reads a request.
    pub fn decode(payload: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(payload);
        let (Head { work, want_values, width, counted }, stage_count, block_count) = take_head(&mut reader)?;
        let mut stages = Vec::with_capacity(stage_count);
        for _ in 0..stage_count {
            let keys = take_keys(&mut reader)?;
            let gradients = keys
                .dims
                .iter()
                .map(|&dim| floats::take(&mut reader, width, keys.keys.len().saturating_mul(dim as usize)))
                .collect::<Result<_>>()?;
            let show_click = if counted { take_counts(&mut reader, keys.keys.len())? } else { None };
            stages.push(PushedStage { keys, gradients, show_click });
        }
        let mut blocks = Vec::with_capacity(block_count);
        for _ in 0..block_count {
            let block = reader.take::<u32>(2)?;
            blocks.push((block[0], floats::take(&mut reader, width, block[1] as usize)?));
        }
        reader.end()?;
        Ok(PushView { work, want_values, width, counted, stages, blocks })
    }
}

/// The blocks whose new values a push wants, and how they are to travel; its floats are passed over.
pub(crate) fn wanted(payload: &[u8]) -> Result<(FloatWidth, Vec<u32>)> {
    let mut reader = Reader::new(payload);
    let (Head { want_values, width, counted, .. }, stage_count, block_count) = take_head(&mut reader)?;
    if !want_values {
        return Ok((width, Vec::new()));
    }
    for _ in 0..stage_count {
        let keys = take_keys(&mut reader)?;
        for &dim in keys.dims {
            floats::skip(&mut reader, width, keys.keys.len().saturating_mul(dim as usize))?;
        }
        if counted {
            take_counts(&mut reader, keys.keys.len())?;
        }
    }
    let mut blocks = Vec::with_capacity(block_count);
    for _ in 0..block_count {
        let block = reader.take::<u32>(2)?;
        floats::skip(&mut reader, width, block[1] as usize)?;
        blocks.push(block[0]);
    }
    Ok((width, blocks))
}

/// The head, and how many stages and blocks follow.
fn take_head(reader: &mut Reader<'_>) -> Result<(Head, usize, usize)> {
    let head = reader.take::<u32>(4)?;
    let steps = reader.take::<u64>(2)?;
    if head[1] > WANT_VALUES | NARROW | COUNTED || head[2] > MOST || head[3] > MOST || steps[0] > steps[1] {
        return Err(Error::Damaged { what: "push: its counts make no sense" });
    }
    let work = WorkId { stream: head[0], first_step: steps[0], last_step: steps[1] };
    let width = if head[1] & NARROW == 0 { FloatWidth::Bits32 } else { FloatWidth::Bits16 };
    let (want_values, counted) = (head[1] & WANT_VALUES != 0, head[1] & COUNTED != 0);
    Ok((Head { work, want_values, width, counted }, head[2] as usize, head[3] as usize))
}

fn take_counts<'a>(reader: &mut Reader<'a>, keys: usize) -> Result<Option<ShowClick<'a>>> {
    match reader.one::<u64>()? {
        0 => Ok(None),
        1 => Ok(Some(ShowClick { show: reader.take(keys)?, click: reader.take(keys)? })),
        _ => Err(Error::Damaged { what: "push: its counts make no sense" }),
    }
}
