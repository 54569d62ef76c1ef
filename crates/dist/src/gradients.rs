//! The bytes of a push: gradients of sparse rows and dense blocks, of one step of a stream or of several steps merged.
//!
//! ```text
//! head | for each stage: tables, keys, for each table the gradients of the keys' rows, counts | for each block: gradient
//! ```
//!
//! [`PushEncoder`] writes the parts in this order, and only in this order; [`PushView`] reads them in place. GEO's exchanges
//! have the same bytes with differences in the place of gradients. This module knows no server and no request.

use std::borrow::Cow;

use openfleet_core::WorkId;
use openfleet_core::key::mix;
use openfleet_core::strategy::FloatWidth;
use openfleet_table::ShowClick;

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
    /// How the floats of the push travel; values in its answer keep their 32 bits.
    pub width: FloatWidth,
    /// Whether shows and clicks come with the stages.
    pub counted: bool,
    /// Whether the step is measured before it is applied: its answer is the sum of squares of the step's mean gradients, and the
    /// step waits for the factor by which to scale them.
    pub measured: bool,
}

impl Head {
    /// A push that wants nothing back, with floats as they are.
    pub fn of(work: WorkId) -> Self {
        Head { work, want_values: false, width: FloatWidth::Bits32, counted: false, measured: false }
    }
}

/// The bits of a head's flags.
const WANT_VALUES: u32 = 1;
const NARROW: u32 = 2;
const COUNTED: u32 = 4;
const MEASURED: u32 = 8;

/// Writes a push. Stages come first, then [`PushEncoder::blocks`] gives what writes the dense blocks: the compiler keeps the
/// order that [`PushView::decode`] reads.
#[must_use = "a push ends with its blocks: call `blocks` and then `finish`"]
pub struct PushEncoder {
    payload: Payload,
    head: Head,
    stages: u32,
}

/// Where the encoder notes how many stages and blocks a push has.
const COUNTS_AT: usize = 8;

impl PushEncoder {
    /// Begins a push.
    pub fn new(head: Head) -> Self {
        let mut payload = Payload::new();
        let wants = if head.want_values { WANT_VALUES } else { 0 };
        let narrow = if head.width == FloatWidth::Bits16 { NARROW } else { 0 };
        let counted = if head.counted { COUNTED } else { 0 };
        let measured = if head.measured { MEASURED } else { 0 };
        payload.put(&[head.work.stream, wants | narrow | counted | measured, 0, 0]);
        payload.put(&[head.work.first_step, head.work.last_step]);
        PushEncoder { payload, head, stages: 0 }
    }

    /// Adds a stage: its keys, for each of its tables the gradients of the keys' rows, and what is behind the keys if the
    /// head says that they are counted. Counts keep their 32 bits: a count that is rounded is none.
    pub fn stage<'a, R: Iterator<Item = &'a [f32]>>(
        &mut self,
        tables: &[u32],
        dims: &[u32],
        keys: &[u64],
        gradients: impl Iterator<Item = R>,
        counts: Option<Counts<'_>>,
    ) {
        self.stages += 1;
        put_keys(&mut self.payload, tables, dims, keys);
        for (&dim, rows) in dims.iter().zip(gradients) {
            let chance = self.chance();
            floats::put_rows(&mut self.payload, self.head.width, keys.len(), dim as usize, rows, chance);
        }
        if self.head.counted {
            self.payload.put(&[u64::from(counts.is_some())]);
            if let Some(Counts { show, click }) = counts {
                for (room, from) in [show, click].into_iter().map(|from| (keys.len(), from)) {
                    let room = self.payload.room::<f32>(room);
                    room.iter_mut().zip(from).for_each(|(room, count)| *room = count);
                }
            }
        }
    }

    /// Another one for every list of gradients, and the same if the step is pushed again.
    fn chance(&self) -> u64 {
        let WorkId { stream, first_step, .. } = self.head.work;
        mix(mix(first_step ^ (u64::from(stream) << 40)) ^ self.payload.bytes().len() as u64)
    }

    /// All stages are written: dense blocks follow.
    pub fn blocks(self) -> BlockEncoder {
        BlockEncoder { push: self, blocks: 0 }
    }
}

/// Shows and clicks of the keys of a stage, in their order.
pub struct Counts<'a> {
    /// Samples with the key.
    pub show: &'a mut dyn Iterator<Item = f32>,
    /// Those of them with a click.
    pub click: &'a mut dyn Iterator<Item = f32>,
}

/// The second half of [`PushEncoder`].
#[must_use = "call `finish` to get the payload"]
pub struct BlockEncoder {
    push: PushEncoder,
    blocks: u32,
}

impl BlockEncoder {
    /// Adds the gradient of a dense block.
    pub fn block(&mut self, block: u32, gradient: &[f32]) {
        self.blocks += 1;
        self.push.payload.put(&[block, gradient.len() as u32]);
        let chance = self.push.chance();
        floats::put(&mut self.push.payload, self.push.head.width, gradient, chance);
    }

    /// The whole push.
    pub fn finish(self) -> Payload {
        let PushEncoder { mut payload, stages, .. } = self.push;
        let counts = &mut payload.bytes_mut()[COUNTS_AT..COUNTS_AT + 8];
        counts[..4].copy_from_slice(&stages.to_le_bytes());
        counts[4..].copy_from_slice(&self.blocks.to_le_bytes());
        payload
    }
}

/// What a push of a measured step is answered with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure {
    /// The sum of the squares of the step's mean gradients, of those that the server keeps.
    Squares(f64),
    /// The step was applied before.
    Applied {
        /// What its gradients were multiplied by; NaN if that is not known any more.
        factor: f32,
    },
}

impl Measure {
    /// The bytes of the answer.
    pub fn encode(self) -> Payload {
        let mut payload = Payload::new();
        match self {
            Measure::Squares(squares) => payload.put(&[0, squares.to_bits()]),
            Measure::Applied { factor } => payload.put(&[1, u64::from(factor.to_bits())]),
        }
        payload
    }

    /// Reads an answer.
    pub fn decode(reply: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(reply);
        let [kind, value] = [reader.one::<u64>()?, reader.one::<u64>()?];
        reader.end()?;
        match (kind, u32::try_from(value)) {
            (0, _) => Ok(Measure::Squares(f64::from_bits(value))),
            (1, Ok(bits)) => Ok(Measure::Applied { factor: f32::from_bits(bits) }),
            _ => Err(Error::Damaged { what: "measure of a step" }),
        }
    }
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
    /// Whether the step is measured before it is applied.
    pub measured: bool,
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
        let (head, stage_count, block_count) = take_head(&mut reader)?;
        let Head { work, want_values, width, counted, measured } = head;
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
        Ok(PushView { work, want_values, width, counted, measured, stages, blocks })
    }
}

/// The blocks whose new values a push wants; its floats are passed over.
pub(crate) fn wanted(payload: &[u8]) -> Result<Vec<u32>> {
    let mut reader = Reader::new(payload);
    let (Head { want_values, width, counted, .. }, stage_count, block_count) = take_head(&mut reader)?;
    if !want_values {
        return Ok(Vec::new());
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
    Ok(blocks)
}

/// The head, and how many stages and blocks follow.
fn take_head(reader: &mut Reader<'_>) -> Result<(Head, usize, usize)> {
    let head = reader.take::<u32>(4)?;
    let steps = reader.take::<u64>(2)?;
    if head[1] > WANT_VALUES | NARROW | COUNTED | MEASURED || head[2] > MOST || head[3] > MOST || steps[0] > steps[1] {
        return Err(Error::Damaged { what: "push: its counts make no sense" });
    }
    let work = WorkId { stream: head[0], first_step: steps[0], last_step: steps[1] };
    let width = if head[1] & NARROW == 0 { FloatWidth::Bits32 } else { FloatWidth::Bits16 };
    let has = |flag: u32| head[1] & flag != 0;
    let (want_values, counted, measured) = (has(WANT_VALUES), has(COUNTED), has(MEASURED));
    Ok((Head { work, want_values, width, counted, measured }, head[2] as usize, head[3] as usize))
}

fn take_counts<'a>(reader: &mut Reader<'a>, keys: usize) -> Result<Option<ShowClick<'a>>> {
    match reader.one::<u64>()? {
        0 => Ok(None),
        1 => Ok(Some(ShowClick { show: reader.take(keys)?, click: reader.take(keys)? })),
        _ => Err(Error::Damaged { what: "push: its counts make no sense" }),
    }
}

/// The unique keys that one server keeps of a stage, and the tables they are looked up in.
#[derive(Debug, Clone)]
pub struct KeysView<'a> {
    /// Tables by number.
    pub tables: &'a [u32],
    /// Floats in a row of each.
    pub dims: &'a [u32],
    /// The keys.
    pub keys: &'a [u64],
}

/// Writes keys and their tables.
pub(crate) fn put_keys(payload: &mut Payload, tables: &[u32], dims: &[u32], keys: &[u64]) {
    payload.put(&[tables.len() as u32, keys.len() as u32]);
    payload.put(tables);
    payload.put(dims);
    payload.put(keys);
}

/// Reads keys and their tables.
pub(crate) fn take_keys<'a>(reader: &mut Reader<'a>) -> Result<KeysView<'a>> {
    let counts = reader.take::<u32>(2)?;
    let tables = reader.take(counts[0] as usize)?;
    let dims = reader.take(counts[0] as usize)?;
    let keys = reader.take(counts[1] as usize)?;
    Ok(KeysView { tables, dims, keys })
}
