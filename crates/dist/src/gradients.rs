//! The encoding of a push: gradients of sparse rows and dense blocks, of one step of a stream or of several merged steps.
//!
//! ```text
//! head | for each stage: tables, keys, for each table the gradients of the keys' rows, counts | for each block: gradient
//!      | the pull of the next step, if there is one
//! ```
//!
//! [`PushEncoder`] writes the parts in exactly this order; [`PushView`] reads them in place. Exchanges of geo mode have the
//! same encoding, with differences instead of gradients. This module knows no server and no request.

use std::time::Duration;

use openfleet_core::WorkId;
use openfleet_core::key::mix;
use openfleet_core::strategy::FloatWidth;
use openfleet_table::ShowClick;

use crate::error::{Error, Result};
use crate::floats::{self, Floats};
use crate::frame::{Payload, PayloadPool, Reader};

/// The header of a push.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    /// The steps that it contains.
    pub work: WorkId,
    /// Whether the reply should contain the new values of its blocks.
    pub want_values: bool,
    /// The reply should contain how the dense values have changed since the reply with this number; 0 for the values
    /// themselves. The encoding is that of the request "pull changes".
    pub changes_since: Option<u64>,
    /// Width of the floats in the push; values in its reply always have 32 bits.
    pub width: FloatWidth,
    /// Whether the gradients of rows have 32 bits, whatever the width of the others is.
    pub wide_rows: bool,
    /// Whether the stages have shows and clicks.
    pub counted: bool,
    /// Whether the step is measured before it is applied: the reply is the sum of squares of the step's mean gradients, and the
    /// step waits for a scale factor.
    pub measured: bool,
    /// Which part of the step it is.
    pub part: PushPart,
    /// Multiplies the learning rates of all tables in this step.
    pub rate_factor: f32,
}

/// A step's gradients may be pushed in parts: those of the last layers while the first ones are still being computed. The step
/// is pushed when its last part and all before it have arrived.
///
/// A worker that gives a step up and computes it again begins a new attempt, and what has arrived of the old one is dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PushPart {
    /// Number of the attempt, which grows with every step and every attempt of a worker process.
    pub attempt: u64,
    /// Number of the part, from 0.
    pub number: u32,
    /// Whether more parts follow.
    pub has_more: bool,
}

impl Head {
    /// A push of 32-bit floats that requests no values.
    pub fn of(work: WorkId) -> Self {
        Head {
            work,
            want_values: false,
            changes_since: None,
            width: FloatWidth::Bits32,
            wide_rows: false,
            counted: false,
            measured: false,
            part: PushPart::default(),
            rate_factor: 1.0,
        }
    }

    /// The same head for a part of the step.
    pub(crate) fn of_part(self, part: PushPart) -> Self {
        Head { part, ..self }
    }

    fn row_width(&self) -> FloatWidth {
        if self.wide_rows { FloatWidth::Bits32 } else { self.width }
    }
}

/// The bits of a head's flags.
const WANT_VALUES: u32 = 1;
const NARROW: u32 = 2;
const COUNTED: u32 = 4;
const MEASURED: u32 = 8;
const WANT_CHANGES: u32 = 16;
const NEXT_PULL: u32 = 32;
const WIDE_ROWS: u32 = 64;
const HAS_MORE: u32 = 128;

/// Writes a push. Stages come first; then [`PushEncoder::blocks`] returns the encoder of the dense blocks, so that the types
/// enforce the order that [`PushView::decode`] reads.
#[must_use = "a push ends with its blocks: call `blocks` and then `finish`"]
pub struct PushEncoder {
    payload: Payload,
    head: Head,
    stages: u32,
}

/// Offsets in the head: of its flags, of the numbers of stages and blocks, and of the number of a reply.
const FLAGS_AT: usize = 4;
const COUNTS_AT: usize = 8;
const CHANGES_SINCE_AT: usize = 32;

/// Makes an encoded push request the changes since a reply ([`Head::changes_since`]), whose number is known only when the push is
/// sent.
pub(crate) fn request_changes(push: &mut Payload, since: u64) {
    let bytes = push.bytes_mut();
    bytes[FLAGS_AT] |= WANT_CHANGES as u8;
    bytes[CHANGES_SINCE_AT..CHANGES_SINCE_AT + 8].copy_from_slice(&since.to_le_bytes());
}

impl PushEncoder {
    /// Begins a push.
    pub fn new(head: Head) -> Self {
        PushEncoder::in_payload(head, Payload::new())
    }

    /// Begins a push in an empty payload.
    pub(crate) fn in_payload(head: Head, mut payload: Payload) -> Self {
        let wants = if head.want_values { WANT_VALUES } else { 0 };
        let narrow = if head.width == FloatWidth::Bits16 { NARROW } else { 0 };
        let counted = if head.counted { COUNTED } else { 0 };
        let measured = if head.measured { MEASURED } else { 0 };
        let wide_rows = if head.wide_rows { WIDE_ROWS } else { 0 };
        let has_more = if head.part.has_more { HAS_MORE } else { 0 };
        payload.put(&[head.work.stream, wants | narrow | counted | measured | wide_rows | has_more, 0, 0]);
        payload.put(&[head.work.first_step, head.work.last_step, 0]);
        payload.put(&[head.part.attempt, u64::from(head.part.number)]);
        payload.put(&[u64::from(head.rate_factor.to_bits())]);
        if let Some(number) = head.changes_since {
            request_changes(&mut payload, number);
        }
        PushEncoder { payload, head, stages: 0 }
    }

    /// Adds a stage: its keys, the gradients of their rows for each table, and shows and clicks if the head says so. Counts
    /// keep their 32 bits: a rounded count would be wrong.
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
            let chance = self.chance(self.payload.bytes().len() as u64);
            floats::put_rows(&mut self.payload, self.head.row_width(), keys.len(), dim as usize, rows, chance);
        }
        if self.head.counted {
            self.payload.put(&[u64::from(counts.is_some())]);
            if let Some(Counts { show, click }) = counts {
                for (room, from) in [show, click].into_iter().map(|from| (keys.len(), from)) {
                    let room = self.payload.append::<f32>(room);
                    room.iter_mut().zip(from).for_each(|(room, count)| *room = count);
                }
            }
        }
    }

    /// A seed for rounding a list of gradients: the same if the step is pushed again, as a whole or in other parts.
    fn chance(&self, list: u64) -> u64 {
        let WorkId { stream, first_step, .. } = self.head.work;
        mix(mix(first_step ^ (u64::from(stream) << 40)) ^ list)
    }

    /// Ends the stages; dense blocks follow.
    pub fn blocks(self) -> BlockEncoder {
        BlockEncoder { push: self, blocks: 0 }
    }
}

/// Shows and clicks of the keys of a stage, in their order.
pub struct Counts<'a> {
    /// Number of samples with the key.
    pub show: &'a mut dyn Iterator<Item = f32>,
    /// Number of those samples with a click.
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
        // Rows are numbered by their offset, which is below 2^40.
        let chance = self.push.chance(1 << 40 | u64::from(block));
        floats::put(&mut self.push.payload, self.push.head.width, gradient, chance);
    }

    /// Returns the encoded push, which also requests the rows of the next step: `pull` is an encoded request
    /// ([`PullEncoder`](crate::pull::PullEncoder)), answered after the push is applied.
    pub(crate) fn finish_before(mut self, pull: &Payload) -> Payload {
        let payload = &mut self.push.payload;
        payload.bytes_mut()[FLAGS_AT] |= NEXT_PULL as u8;
        payload.put(&[pull.bytes().len() as u64]);
        payload.put(pull.bytes());
        self.finish()
    }

    /// Returns the encoded push.
    pub fn finish(self) -> Payload {
        let PushEncoder { mut payload, stages, .. } = self.push;
        let counts = &mut payload.bytes_mut()[COUNTS_AT..COUNTS_AT + 8];
        counts[..4].copy_from_slice(&stages.to_le_bytes());
        counts[4..].copy_from_slice(&self.blocks.to_le_bytes());
        payload
    }
}

/// The reply to a push of a measured step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure {
    /// The sum of squares of the mean gradients that the server has of the step.
    Squares(f64),
    /// The step was applied before.
    Applied {
        /// The scale factor that was used; NaN if it is no longer known.
        factor: f32,
    },
}

impl Measure {
    /// Encodes the reply.
    pub fn encode(self) -> Payload {
        let mut payload = Payload::new();
        match self {
            Measure::Squares(squares) => payload.put(&[0, squares.to_bits()]),
            Measure::Applied { factor } => payload.put(&[1, u64::from(factor.to_bits())]),
        }
        payload
    }

    /// Reads a reply.
    pub fn take(reader: &mut Reader<'_>) -> Result<Self> {
        let [kind, value] = [reader.one::<u64>()?, reader.one::<u64>()?];
        match (kind, u32::try_from(value)) {
            (0, _) => Ok(Measure::Squares(f64::from_bits(value))),
            (1, Ok(bits)) => Ok(Measure::Applied { factor: f32::from_bits(bits) }),
            _ => Err(Error::Damaged { what: "measure of a step" }),
        }
    }
}

/// Appends to the reply of a group's step how long it waited for the pushes of other workers.
pub(crate) fn put_barrier(reply: &mut Payload, barrier: Duration) {
    reply.put(&[u32::try_from(barrier.as_micros()).unwrap_or(u32::MAX)]);
}

/// Reads what [`put_barrier`] appended.
pub(crate) fn take_barrier(reader: &mut Reader<'_>) -> Result<Duration> {
    Ok(Duration::from_micros(u64::from(reader.one::<u32>()?)))
}

/// A push, decoded in place.
#[derive(Debug)]
pub struct PushView<'a> {
    /// The steps that it contains.
    pub work: WorkId,
    /// Whether the reply should contain the new values of its blocks.
    pub want_values: bool,
    /// See [`Head::changes_since`].
    pub changes_since: Option<u64>,
    /// Width of its floats.
    pub width: FloatWidth,
    /// Whether the stages have shows and clicks.
    pub counted: bool,
    /// Whether the step is measured before it is applied.
    pub measured: bool,
    /// Which part of the step it is.
    pub part: PushPart,
    /// See [`Head::rate_factor`].
    pub rate_factor: f32,
    /// Per stage: the keys, and for each table the gradients of their rows.
    pub stages: Vec<PushedStage<'a>>,
    /// Block number and gradient.
    pub blocks: Vec<(u32, Floats<'a>)>,
    /// The encoded pull of the next step, which the reply should answer too.
    pub next_pull: Option<&'a [u8]>,
}

/// The keys of a stage and what is pushed to them.
#[derive(Debug)]
pub struct PushedStage<'a> {
    /// The keys, and their tables.
    pub keys: KeysView<'a>,
    /// For each table, the gradients of their rows.
    pub gradients: Vec<Floats<'a>>,
    /// Shows and clicks per key, if the push has them.
    pub show_click: Option<ShowClick<'a>>,
}

/// Maximum number of stages or blocks of a push. Bounds the memory for the lists.
const MOST: u32 = 1 << 16;

impl<'a> PushView<'a> {
    /// Decodes a push. Fails if the payload is damaged.
    pub fn decode(payload: &'a [u8]) -> Result<Self> {
        Self::decode_in(payload, &PayloadPool::default())
    }

    /// Decodes a push; narrow floats are converted into memory of the pool.
    pub fn decode_in(payload: &'a [u8], pool: &PayloadPool) -> Result<Self> {
        let mut reader = Reader::new(payload);
        let (head, Parts { stages: stage_count, blocks: block_count, has_pull }) = take_head(&mut reader)?;
        let (Head { work, want_values, changes_since, width, counted, measured, part, rate_factor, .. }, row_width) =
            (head, head.row_width());
        let mut stages = Vec::with_capacity(stage_count);
        for _ in 0..stage_count {
            let keys = take_keys(&mut reader)?;
            let gradients = keys
                .dims
                .iter()
                .map(|&dim| floats::take(&mut reader, row_width, pool, keys.keys.len().saturating_mul(dim as usize)))
                .collect::<Result<_>>()?;
            let show_click = if counted { take_counts(&mut reader, keys.keys.len())? } else { None };
            stages.push(PushedStage { keys, gradients, show_click });
        }
        let mut blocks = Vec::with_capacity(block_count);
        for _ in 0..block_count {
            let block = reader.take::<u32>(2)?;
            blocks.push((block[0], floats::take(&mut reader, width, pool, block[1] as usize)?));
        }
        let next_pull = take_pull(&mut reader, has_pull)?;
        reader.end()?;
        Ok(PushView {
            work,
            want_values,
            changes_since,
            width,
            counted,
            measured,
            part,
            rate_factor,
            stages,
            blocks,
            next_pull,
        })
    }
}

/// What the reply to a push should contain.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted<'a> {
    /// The stream of the push.
    pub(crate) stream: u32,
    /// See [`Head::changes_since`].
    pub(crate) changes_since: Option<u64>,
    /// The blocks whose new values are requested.
    pub(crate) blocks: Vec<u32>,
    /// See [`PushView::next_pull`].
    pub(crate) next_pull: Option<&'a [u8]>,
}

/// What the reply to an encoded push should contain; the floats of the push are skipped.
pub(crate) fn wanted(payload: &[u8]) -> Result<Wanted<'_>> {
    let mut reader = Reader::new(payload);
    let (head, parts) = take_head(&mut reader)?;
    let Head { work, want_values, changes_since, width, counted, .. } = head;
    let stream = work.stream;
    if !want_values && !parts.has_pull {
        return Ok(Wanted { stream, changes_since, ..Wanted::default() });
    }
    for _ in 0..parts.stages {
        let keys = take_keys(&mut reader)?;
        for &dim in keys.dims {
            floats::skip(&mut reader, head.row_width(), keys.keys.len().saturating_mul(dim as usize))?;
        }
        if counted {
            take_counts(&mut reader, keys.keys.len())?;
        }
    }
    let mut blocks = Vec::with_capacity(parts.blocks);
    for _ in 0..parts.blocks {
        let block = reader.take::<u32>(2)?;
        floats::skip(&mut reader, width, block[1] as usize)?;
        if want_values {
            blocks.push(block[0]);
        }
    }
    Ok(Wanted { stream, changes_since, blocks, next_pull: take_pull(&mut reader, parts.has_pull)? })
}

/// What follows the head of a push.
struct Parts {
    stages: usize,
    blocks: usize,
    has_pull: bool,
}

fn take_pull<'a>(reader: &mut Reader<'a>, has_pull: bool) -> Result<Option<&'a [u8]>> {
    if !has_pull {
        return Ok(None);
    }
    let length = reader.one::<u64>()? as usize;
    reader.take(length).map(Some)
}

fn take_head(reader: &mut Reader<'_>) -> Result<(Head, Parts)> {
    let head = reader.take::<u32>(4)?;
    let steps = reader.take::<u64>(3)?;
    let part = reader.take::<u64>(2)?;
    let rate_factor = f32::from_bits(reader.one::<u64>()? as u32);
    if head[1] > WANT_VALUES | NARROW | COUNTED | MEASURED | WANT_CHANGES | NEXT_PULL | WIDE_ROWS | HAS_MORE
        || head[2] > MOST
        || head[3] > MOST
        || part[1] > u64::from(MOST)
        || steps[0] > steps[1]
        || !(rate_factor.is_finite() && rate_factor >= 0.0)
    {
        return Err(Error::Damaged { what: "push: its counts make no sense" });
    }
    let work = WorkId { stream: head[0], first_step: steps[0], last_step: steps[1] };
    let width = if head[1] & NARROW == 0 { FloatWidth::Bits32 } else { FloatWidth::Bits16 };
    let has = |flag: u32| head[1] & flag != 0;
    let (want_values, counted, measured) = (has(WANT_VALUES), has(COUNTED), has(MEASURED));
    let changes_since = has(WANT_CHANGES).then_some(steps[2]);
    let parts = Parts { stages: head[2] as usize, blocks: head[3] as usize, has_pull: has(NEXT_PULL) };
    let wide_rows = has(WIDE_ROWS);
    let part = PushPart { attempt: part[0], number: part[1] as u32, has_more: has(HAS_MORE) };
    Ok((Head { work, want_values, changes_since, width, wide_rows, counted, measured, part, rate_factor }, parts))
}

fn take_counts<'a>(reader: &mut Reader<'a>, keys: usize) -> Result<Option<ShowClick<'a>>> {
    match reader.one::<u64>()? {
        0 => Ok(None),
        1 => Ok(Some(ShowClick { show: reader.take(keys)?, click: reader.take(keys)? })),
        _ => Err(Error::Damaged { what: "push: its counts make no sense" }),
    }
}

/// The unique keys of a stage that belong to one server, and the tables they are looked up in.
#[derive(Debug, Clone)]
pub struct KeysView<'a> {
    /// Numbers of the tables.
    pub tables: &'a [u32],
    /// Weights per row of each table.
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
