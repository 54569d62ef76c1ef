//! Sparse tables: u64 key to row, unbounded unless a capacity is given.
//!
//! A table has a power of two of shards, each with one lock that a request takes once: keys are first grouped by shard
//! ([`Scratch`]), then processed in batches whose cache misses overlap (`shard`), with an open-addressing index (`index`) and
//! slabs of rows without gaps (`rows`). The initial values of a row depend only on the table's seed and the key, so neither the
//! number of shards, nor the order of requests, nor the number of servers affects the values.
//!
//! The [`Accessor`] defines what a row consists of, and [`Admission`] which keys get one. Rows are removed by
//! [`shrink`](SparseTable::shrink), or when there are more than the capacity.
//!
//! The table does not know who pushes, in which mode, or what time it is: the stamp of a touched row is a number that the
//! caller sets.

mod bases;
mod changes;
mod cut;
mod differences;
mod huge_pages;
pub(crate) mod index;
pub(crate) mod prefetch;
mod restorer;
pub(crate) mod rows;
mod scratch;
mod shard;
pub(crate) mod slabs;
mod unadmitted;

pub use cut::Cut;
pub use differences::Differences;
pub use restorer::RowRestorer;
pub use scratch::Scratch;
pub(crate) use shard::BATCH;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use openfleet_core::Key;
use openfleet_core::key::mix;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::accessor::{Accessor, NewRow, Plain, PlainBfloat16, Push, Row, RowLayout, RowStorage};
use crate::admission::Admission;
use crate::clip;
use crate::error::{Error, Result, require, same_length};
use crate::initializer::{Fans, Initializer};
use crate::optimizer::{Optimizer, Sgd};
use crate::push::{NonFinite, PushReport, ShowClick, Shrunk};
use crate::regularizer::Regularizer;
use crate::schedule::Schedule;
use scratch::{Wanted, shard_of};
use shard::Shard;

/// What a sparse table is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseSpec {
    /// Weights per row.
    pub dim: usize,
    /// The update rule.
    pub optimizer: Optimizer,
    /// The learning rate over the table's steps.
    pub schedule: Schedule,
    /// Added to the gradients of pushed rows before the update rule.
    pub regularizer: Option<Regularizer>,
    /// Initial weights of a row.
    pub initializer: Initializer,
    /// Determines the initial weights together with the key.
    pub seed: u64,
    /// Number of shards, a power of two. [`DEFAULT_SHARDS`] is enough for a few dozen threads.
    pub shards: usize,
    /// What a row consists of.
    #[serde(default)]
    pub accessor: Accessor,
    /// Which keys get a row.
    #[serde(default)]
    pub admission: Admission,
    /// Maximum number of rows, if there is a limit: beyond it, rows that were not used recently are evicted. At least one per
    /// shard.
    #[serde(default)]
    pub capacity: Option<usize>,
    /// What happens to gradients that are not finite.
    #[serde(default)]
    pub non_finite: NonFinite,
    /// Whether keys are ids salted by their slot, instead of plain ids. The table does not use it; it is saved with the rows
    /// because salted ids do not find rows of plain ids.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub salted: bool,
    /// How the weights of a row are stored.
    #[serde(default, skip_serializing_if = "RowStorage::is_float32")]
    pub storage: RowStorage,
}

impl SparseSpec {
    /// The same spec without optimizer state: for a table that only has differences added to it.
    pub fn without_state(&self) -> Self {
        SparseSpec { optimizer: Optimizer::Sgd(Sgd::default()), ..self.clone() }
    }

    /// Floats of optimizer state per row.
    pub fn state_len(&self) -> usize {
        match self.accessor {
            Accessor::Plain => self.optimizer.state_len(self.dim),
            // Short row and long part are updated separately.
            Accessor::Ctr(_) => self.optimizer.state_len(1) + self.optimizer.state_len(self.dim - 1),
        }
    }
}

/// Default number of shards.
pub const DEFAULT_SHARDS: usize = 64;

/// What a pull does with keys that have no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Create the row if the key is admitted: for training.
    Create,
    /// Return the initial values and create nothing: for evaluation.
    Initial,
}

/// What a put does with keys that have a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Leave the row unchanged: another thread may have trained it already.
    Keep,
    /// Replace its weights; the optimizer's state stays.
    Replace,
}

/// Runs `$body` with `$layout` as the table's accessor: code that calls a shard is compiled once per layout of a row.
macro_rules! with_layout {
    ($spec:expr, $layout:ident => $body:expr) => {
        match (&$spec.accessor, $spec.storage) {
            (Accessor::Plain, RowStorage::Float32) => {
                let $layout = &Plain;
                $body
            }
            (Accessor::Plain, RowStorage::Bfloat16) => {
                let $layout = &PlainBfloat16;
                $body
            }
            // A table with narrow ctr rows cannot be created.
            (Accessor::Ctr($layout), _) => $body,
        }
    };
}

use with_layout;

impl SparseSpec {
    /// Bytes of a table with this many rows: weights, optimizer state, headers and the index. Exact if every shard has the same
    /// number of rows, and if every row of a ctr table has its long part.
    pub fn bytes_for(&self, rows: u64) -> u64 {
        let (floats, long_floats) = with_layout!(self, layout => RowLayout::widths(layout, self));
        let shards = self.shards.max(1) as u64;
        rows * rows::row_bytes(floats, long_floats) as u64 + shards * index::Index::bytes_for(rows.div_ceil(shards))
    }
}

/// Rows by key, pulled and pushed by many threads.
#[derive(Debug)]
pub struct SparseTable {
    spec: SparseSpec,
    fans: Fans,
    shards: Vec<Mutex<Shard>>,
    step: AtomicU64,
    stamp: AtomicU32,
    non_finite: AtomicU64,
    not_admitted: AtomicU64,
    /// True while a cut is being read.
    is_cut: AtomicBool,
    /// The saves that changes are known since.
    saves: Mutex<changes::Saves>,
    /// The gradient of rows that are not pushed, under a rule that moves them.
    zeros: Vec<f32>,
}

impl SparseTable {
    /// An empty table. Fails if the spec is invalid.
    pub fn new(spec: SparseSpec) -> Result<Self> {
        let owner = "a sparse table";
        require((1..=1 << 20).contains(&spec.dim), owner, "dim", "from 1 to 1048576", spec.dim)?;
        let shards_fit = spec.shards.is_power_of_two() && spec.shards <= 1 << 16;
        require(shards_fit, owner, "shards", "a power of two up to 65536", spec.shards)?;
        spec.optimizer.validate()?;
        spec.schedule.validate()?;
        spec.regularizer.as_ref().map_or(Ok(()), Regularizer::validate)?;
        spec.initializer.validate()?;
        spec.accessor.validate()?;
        spec.admission.validate()?;
        spec.non_finite.validate()?;
        if !spec.storage.is_float32() && spec.accessor != Accessor::Plain {
            return Err(Error::NarrowCtr { storage: spec.storage.name() });
        }
        let room = spec.capacity.is_none_or(|capacity| capacity >= spec.shards);
        require(room, owner, "capacity", "at least one row per shard", spec.capacity.unwrap_or_default())?;
        if spec.optimizer.moves_every_row() && (spec.accessor != Accessor::Plain || spec.capacity.is_some()) {
            return Err(Error::MovesEveryRow { optimizer: spec.optimizer.name() });
        }
        let fans = spec.initializer.fans_of_rows()?;
        let shards = with_layout!(spec, layout => {
            (0..spec.shards).map(|_| Mutex::new(Shard::new(&spec, layout))).collect()
        });
        let zero = || AtomicU64::new(0);
        let (step, non_finite, not_admitted) = (zero(), zero(), zero());
        let (stamp, is_cut) = (AtomicU32::new(0), AtomicBool::new(false));
        let saves = Mutex::default();
        let zeros = if spec.optimizer.moves_every_row() { vec![0.0; spec.dim] } else { Vec::new() };
        Ok(SparseTable { spec, fans, shards, step, stamp, non_finite, not_admitted, is_cut, saves, zeros })
    }

    /// Copies the weights of `keys[i]` to `rows[i * dim..]`. A key may appear twice. A key that is not admitted gives zeros.
    pub fn pull(&self, keys: &[Key], missing: Missing, rows: &mut [f32], scratch: &mut Scratch) -> Result<()> {
        same_length("rows", keys.len().saturating_mul(self.spec.dim), rows.len())?;
        scratch.group(keys, self.shards.len())?;
        let new_row = self.new_row();
        with_layout!(self.spec, layout => {
            self.visit(scratch, |shard, group| shard.pull(layout, group, missing, &new_row, rows));
        });
        Ok(())
    }

    /// Copies the weights of those `keys` that have a row to their positions in `rows`, and lists the positions of the others
    /// in `absent`, ascending; `rows` is unchanged there. Creates no rows and sets no stamps: a worker that keeps copies uses
    /// it to find out what to fetch.
    pub fn pull_present(
        &self,
        keys: &[Key],
        rows: &mut [f32],
        absent: &mut Vec<u32>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        same_length("rows", keys.len().saturating_mul(self.spec.dim), rows.len())?;
        scratch.group(keys, self.shards.len())?;
        absent.clear();
        with_layout!(self.spec, layout => {
            self.visit(scratch, |shard, group| shard.pull_present(layout, group, self.spec.dim, rows, absent));
        });
        absent.sort_unstable();
        Ok(())
    }

    /// Collects in `absent` the positions of keys without a row, in ascending order.
    pub fn absent(&self, keys: &[Key], absent: &mut Vec<u32>, scratch: &mut Scratch) -> Result<()> {
        scratch.group(keys, self.shards.len())?;
        absent.clear();
        with_layout!(self.spec, layout => {
            self.visit(scratch, |shard, group| shard.absent(layout, group, self.spec.dim, absent));
        });
        absent.sort_unstable();
        Ok(())
    }

    /// Sets the weights of `keys[i]` to `rows[i * dim..]` if there is no row yet or `existing` says so. Optimizer state of a
    /// new row is initialized. Does not count as a step.
    pub fn put(&self, keys: &[Key], rows: &[f32], existing: Existing, scratch: &mut Scratch) -> Result<()> {
        same_length("rows", keys.len().saturating_mul(self.spec.dim), rows.len())?;
        scratch.group(keys, self.shards.len())?;
        let new_row = self.new_row();
        with_layout!(self.spec, layout => {
            self.visit(scratch, |shard, group| shard.put(layout, group, &new_row, rows, existing));
        });
        Ok(())
    }

    /// One step of the table: applies `gradients[i * dim..]` to the row of `keys[i]`, creating missing rows. A key that appears
    /// twice is updated twice, in order; other keys are not affected. A gradient whose key is not admitted is dropped and
    /// reported; one that is not finite is handled by the table's policy, and if refused creates no row.
    ///
    /// An empty push is a step too: a server with none of a batch's keys stays in step with the others.
    ///
    /// Under a rule that [moves every row](Optimizer::moves_every_row), the rows of other keys are updated by a gradient of 0,
    /// without the regularizer, and keep their stamps.
    pub fn push(&self, keys: &[Key], gradients: &[f32], scratch: &mut Scratch) -> Result<PushReport> {
        self.push_with(keys, gradients, None, scratch)
    }

    /// [`push`](Self::push) with shows and clicks per key, for accessors and admissions that count them; others ignore them.
    /// Counts that are negative or not finite are refused like gradients that are not finite.
    pub fn push_with(
        &self,
        keys: &[Key],
        gradients: &[f32],
        show_click: Option<ShowClick<'_>>,
        scratch: &mut Scratch,
    ) -> Result<PushReport> {
        self.push_at(keys, gradients, show_click, 1.0, scratch)
    }

    /// [`push_with`](Self::push_with) at the rate of the schedule multiplied by a factor.
    pub fn push_at(
        &self,
        keys: &[Key],
        gradients: &[f32],
        show_click: Option<ShowClick<'_>>,
        rate_factor: f32,
        scratch: &mut Scratch,
    ) -> Result<PushReport> {
        same_length("gradients", keys.len().saturating_mul(self.spec.dim), gradients.len())?;
        if let Some(ShowClick { show, click }) = show_click {
            same_length("show", keys.len(), show.len())?;
            same_length("click", keys.len(), click.len())?;
        }
        scratch.group(keys, self.shards.len())?;
        self.inspected(keys, gradients, scratch, |gradients, scratch| {
            let finished = self.step.fetch_add(1, Ordering::Relaxed);
            let rate = self.spec.schedule.rate(finished) * f64::from(rate_factor);
            let update = self.spec.optimizer.at(rate as f32, finished + 1);
            let rounding = mix(self.spec.seed ^ mix(finished));
            let regularizer = self.spec.regularizer.as_ref();
            let push = Push { new_row: self.new_row(), update, regularizer, rounding, gradients, show_click };
            let mut report = PushReport::default();
            with_layout!(self.spec, layout => match self.spec.optimizer.moves_every_row() {
                false => self.visit(scratch, |shard, group| report.merge(shard.push(layout, group, &push))),
                true => self.visit_all(scratch, |shard, group| {
                    report.merge(shard.push_to_all(layout, group, &push, &self.zeros));
                }),
            });
            report
        })
    }

    /// Adds `deltas[i * dim..]` to the weights of `keys[i]` directly, without the optimizer: how differences of geo mode are
    /// applied. A missing row is created with its initial values, which are also what the sender's copy started from. Admission
    /// and the policy for non-finite numbers are those of a push. Does not count as a step.
    ///
    /// # Errors
    ///
    /// If the lengths do not agree, or the table stores weights in 16 bits: each sum would be rounded, and the sender, whose copy
    /// is not, would never correct it.
    pub fn add(&self, keys: &[Key], deltas: &[f32], scratch: &mut Scratch) -> Result<PushReport> {
        same_length("deltas", keys.len().saturating_mul(self.spec.dim), deltas.len())?;
        if !self.spec.storage.is_float32() {
            return Err(Error::NarrowSum { storage: self.spec.storage.name() });
        }
        scratch.group(keys, self.shards.len())?;
        self.inspected(keys, deltas, scratch, |deltas, scratch| {
            let (new_row, mut report) = (self.new_row(), PushReport::default());
            match &self.spec.accessor {
                Accessor::Plain => {
                    self.visit(scratch, |shard, group| report.merge(shard.add(&Plain, group, &new_row, deltas)));
                }
                Accessor::Ctr(layout) => {
                    self.visit(scratch, |shard, group| report.merge(shard.add(layout, group, &new_row, deltas)));
                }
            }
            report
        })
    }

    /// Decays every row by its accessor's rules, removes rows with low scores and rows that were last touched more than
    /// `max_age` before the stamp `now` (`u32::MAX` keeps rows of every age). Locks one shard at a time: requests for other
    /// shards continue. Frees unused memory.
    pub fn shrink(&self, now: u32, max_age: u32) -> Shrunk {
        let mut shrunk = Shrunk::default();
        with_layout!(self.spec, layout => {
            self.shards.iter().for_each(|shard| shrunk.merge(shard.lock().shrink(layout, now, max_age)));
        });
        shrunk
    }

    /// Tells every row that a day has passed: the ctr accessor adds one unseen day.
    pub fn end_of_day(&self) {
        with_layout!(self.spec, layout => {
            self.shards.iter().for_each(|shard| shard.lock().end_of_day(layout));
        });
    }

    /// Calls `look` with every row: key, weights, optimizer state (slot-major). Each shard is locked while its rows are read,
    /// so `look` must not call the table. The order is by shard, then by creation until a row is removed.
    pub fn for_each(&self, mut look: impl FnMut(Key, &[f32], &[f32])) {
        self.for_each_row(|row| look(row.key, row.weights, row.state));
    }

    /// Calls `look` with every row and everything that is saved of it, like [`for_each`](Self::for_each).
    pub fn for_each_row(&self, mut look: impl FnMut(&Row<'_>)) {
        with_layout!(self.spec, layout => {
            self.shards.iter().for_each(|shard| shard.lock().for_each(layout, &self.spec, &mut look));
        });
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The keys of one shard; none if there is no such shard.
    pub fn keys_of(&self, shard: usize) -> Vec<Key> {
        let mut keys = Vec::new();
        if let Some(shard) = self.shards.get(shard) {
            with_layout!(self.spec, layout => shard.lock().for_each(layout, &self.spec, &mut |row| keys.push(row.key)));
        }
        keys
    }

    /// Calls `look` with the weights and state of one row, if it exists. The shard is locked meanwhile.
    pub fn read<T>(&self, key: Key, look: impl FnOnce(&[f32], &[f32]) -> T) -> Option<T> {
        self.read_row(key, |row| look(row.weights, row.state))
    }

    /// Calls `look` with one row and everything that is saved of it, like [`read`](Self::read).
    pub fn read_row<T>(&self, key: Key, look: impl FnOnce(&Row<'_>) -> T) -> Option<T> {
        let shard = self.shard(key).lock();
        with_layout!(self.spec, layout => shard.read(layout, &Wanted::new(key, 0), &self.spec, look))
    }

    /// Sets a row and creates it if necessary, admitted or not; without `state` its optimizer state is initialized.
    pub fn assign(&self, key: Key, weights: &[f32], state: Option<&[f32]>) -> Result<()> {
        same_length("weights", self.spec.dim, weights.len())?;
        if let Some(state) = state {
            same_length("optimizer state", self.spec.state_len(), state.len())?;
        }
        let mut shard = self.shard(key).lock();
        with_layout!(self.spec, layout => {
            shard.restore(layout, &Wanted::new(key, 0), &self.new_row(), weights, state, None);
        });
        Ok(())
    }

    /// Restores a row that [`for_each_row`](Self::for_each_row) returned, including its stamp.
    pub fn restore(&self, row: &Row<'_>) -> Result<()> {
        self.restorer(true).restore(row)
    }

    /// Restores many rows, with optimizer state, or without if the optimizer has changed.
    pub fn restorer(&self, with_state: bool) -> RowRestorer<'_> {
        RowRestorer::new(self, with_state)
    }

    /// Reserves capacity for about this many more rows.
    pub fn reserve(&self, rows: u64) {
        let most = self.spec.capacity.unwrap_or(usize::MAX);
        // A shard that gets more than its share grows by itself.
        let each = usize::try_from(rows).unwrap_or(usize::MAX).min(most) / self.shards.len();
        self.shards.iter().for_each(|shard| shard.lock().reserve(each));
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of pushes so far.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    /// Continues from a saved step count.
    pub fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Sets the stamp that rows get from now on when they are pushed, or pulled with [`Missing::Create`]: a day, a pass, or
    /// whatever the caller counts.
    pub fn set_stamp(&self, stamp: u32) {
        self.stamp.store(stamp, Ordering::Relaxed);
    }

    /// The newest stamp: the table's own, or that of a row from a checkpoint.
    pub fn latest_stamp(&self) -> u32 {
        let mut latest = self.stamp.load(Ordering::Relaxed);
        self.for_each_row(|row| latest = latest.max(row.stamp));
        latest
    }

    /// The stamp of a key's row: when it was last touched.
    pub fn stamp(&self, key: Key) -> Option<u32> {
        self.shard(key).lock().stamp(&Wanted::new(key, 0))
    }

    /// Weights per row.
    pub fn dim(&self) -> usize {
        self.spec.dim
    }

    /// Gradients refused or clipped so far because they were not finite.
    pub fn non_finite(&self) -> u64 {
        self.non_finite.load(Ordering::Relaxed)
    }

    /// Gradients dropped so far because their keys were not admitted.
    pub fn not_admitted(&self) -> u64 {
        self.not_admitted.load(Ordering::Relaxed)
    }

    /// Rows removed so far to stay within the capacity.
    pub fn evicted(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().evicted()).sum()
    }

    /// Bytes used by rows, indexes and the counts of keys without a row.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    /// The spec of the table.
    pub fn spec(&self) -> &SparseSpec {
        &self.spec
    }

    /// Runs each group through its shard, one lock at a time. A locked shard is deferred until the others are done, instead of
    /// waiting for it: the thread that holds it may have been preempted.
    fn visit(&self, scratch: &mut Scratch, mut work: impl FnMut(&mut Shard, &[Wanted])) {
        let mut deferred = std::mem::take(&mut scratch.deferred);
        for (number, group) in scratch.groups() {
            match self.shards[number].try_lock() {
                Some(mut shard) => work(&mut shard, group),
                None => deferred.push(number),
            }
        }
        for number in deferred.drain(..) {
            work(&mut self.shards[number].lock(), scratch.group_of(number));
        }
        scratch.deferred = deferred;
    }

    /// Calls `work` with every shard and its group, which may be empty.
    fn visit_all(&self, scratch: &Scratch, mut work: impl FnMut(&mut Shard, &[Wanted])) {
        self.shards.iter().enumerate().for_each(|(number, shard)| work(&mut shard.lock(), scratch.group_of(number)));
    }

    /// Applies the policy for non-finite gradients, runs `work` on the result, and counts.
    fn inspected(
        &self,
        keys: &[Key],
        gradients: &[f32],
        scratch: &mut Scratch,
        work: impl FnOnce(&[f32], &mut Scratch) -> PushReport,
    ) -> Result<PushReport> {
        let dim = self.spec.dim;
        let report = match self.spec.non_finite {
            NonFinite::Clip(limit) if !clip::is_within(gradients, limit) => {
                let mut mended = std::mem::take(&mut scratch.mended);
                mended.clear();
                mended.extend_from_slice(gradients);
                let clipped =
                    mended.chunks_exact_mut(dim).filter_map(|row| clip::mend(row, limit).then_some(())).count();
                let report = PushReport { clipped, ..work(&mended, scratch) };
                scratch.mended = mended;
                report
            }
            NonFinite::Stop if !clip::is_usable(gradients) => {
                let mut rows = keys.iter().zip(gradients.chunks_exact(dim)).filter(|(_, row)| !clip::is_usable(row));
                let key = rows.next().map_or(0, |(key, _)| *key);
                self.non_finite.fetch_add(1 + rows.count() as u64, Ordering::Relaxed);
                return Err(Error::NonFiniteRow { key });
            }
            // Shards skip such gradients themselves, because they read them anyway.
            _ => work(gradients, scratch),
        };
        self.non_finite.fetch_add((report.non_finite + report.clipped) as u64, Ordering::Relaxed);
        self.not_admitted.fetch_add(report.not_admitted as u64, Ordering::Relaxed);
        Ok(report)
    }

    /// Calls `look` with about `most` rows of a shard's cut; returns whether those were the last.
    fn read_cut(&self, shard: &mut Shard, most: u32, look: &mut impl FnMut(&Row<'_>)) -> bool {
        with_layout!(self.spec, layout => shard.read_cut(layout, most, look))
    }

    /// Writes what a pull returns for a key without a row to `row`, whatever table the rows are in.
    pub(crate) fn show_absent(&self, key: Key, row: &mut [f32]) {
        let new_row = self.new_row();
        with_layout!(self.spec, layout => new_row.show_absent(layout, key, row));
    }

    fn new_row(&self) -> NewRow<'_> {
        NewRow { spec: &self.spec, fans: self.fans, stamp: self.stamp.load(Ordering::Relaxed) }
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[shard_of(key, self.shards.len())]
    }
}
