//! Sparse tables: u64 key to row, unbounded.
//!
//! A table is a power of two of shards, each behind one lock that a request takes once: keys are first grouped by shard
//! ([`Scratch`]), then run through it in batches whose cache misses overlap (`shard`), over an open-addressing index
//! (`index`) and slabs of rows that never move (`rows`). What a row starts from depends on the table's seed and the key
//! alone, so neither the number of shards, nor the order of requests, nor the number of servers shows in the values.
//!
//! The table does not know who pushes, in which mode, or what time it is: the stamp on a touched row is a number the
//! caller sets.

mod index;
mod prefetch;
mod rows;
mod scratch;
mod shard;

pub use scratch::Scratch;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use openfleet_core::Key;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::{Result, require, same_length};
use crate::initializer::{Fans, Initializer};
use crate::optimizer::Optimizer;
use crate::push::PushReport;
use crate::regularizer::Regularizer;
use crate::schedule::Schedule;
use scratch::{Wanted, shard_of};
use shard::{Birth, Shard};

/// What a sparse table is made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseSpec {
    /// Weights in a row.
    pub dim: usize,
    /// The update rule.
    pub optimizer: Optimizer,
    /// The learning rate over the table's steps.
    pub schedule: Schedule,
    /// Added to the gradients of pushed rows before the rule.
    pub regularizer: Option<Regularizer>,
    /// First weights of a row.
    pub initializer: Initializer,
    /// Decides the first weights together with the key.
    pub seed: u64,
    /// Locks; a power of two. [`DEFAULT_SHARDS`] suits up to a few dozen threads.
    pub shards: usize,
}

/// Shards of a table unless somebody has measured better.
pub const DEFAULT_SHARDS: usize = 64;

/// What a pull does about keys that have no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Create the row: training.
    Create,
    /// Give the values the row would start from and create nothing: evaluation.
    Initial,
}

/// What a put does about keys that have a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Leave the row as it is: whoever came first has perhaps trained on it.
    Keep,
    /// Replace its weights; the optimizer's state stays.
    Replace,
}

/// Rows by key, pulled and pushed from many threads.
#[derive(Debug)]
pub struct SparseTable {
    spec: SparseSpec,
    fans: Fans,
    shards: Vec<Mutex<Shard>>,
    step: AtomicU64,
    stamp: AtomicU32,
    non_finite: AtomicU64,
}

impl SparseTable {
    /// An empty table.
    pub fn new(spec: SparseSpec) -> Result<Self> {
        let owner = "a sparse table";
        require((1..=1 << 20).contains(&spec.dim), owner, "dim", "from 1 to 1048576", spec.dim)?;
        let shards_fit = spec.shards.is_power_of_two() && spec.shards <= 1 << 16;
        require(shards_fit, owner, "shards", "a power of two up to 65536", spec.shards)?;
        spec.optimizer.validate()?;
        spec.schedule.validate()?;
        spec.regularizer.as_ref().map_or(Ok(()), Regularizer::validate)?;
        spec.initializer.validate()?;
        let fans = spec.initializer.fans_of_rows()?;
        let shards = (0..spec.shards).map(|_| Mutex::new(Shard::new(&spec))).collect();
        let (step, stamp, non_finite) = (AtomicU64::new(0), AtomicU32::new(0), AtomicU64::new(0));
        Ok(SparseTable { spec, fans, shards, step, stamp, non_finite })
    }

    /// Copies the weights of `keys[i]` to `rows[i * dim..]`. A key may be named twice.
    pub fn pull(&self, keys: &[Key], missing: Missing, rows: &mut [f32], scratch: &mut Scratch) -> Result<()> {
        same_length("rows", keys.len().saturating_mul(self.spec.dim), rows.len())?;
        scratch.group(keys, self.shards.len())?;
        let birth = self.birth();
        self.visit(scratch, |shard, group| shard.pull(group, missing, &birth, rows));
        Ok(())
    }

    /// Copies the weights of those `keys` that have a row to their places in `rows`, and lists the positions of the others
    /// in `absent`, ascending; their places are left alone. Creates nothing and stamps nothing: how a worker that keeps
    /// copies finds out what it has yet to fetch.
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
        self.visit(scratch, |shard, group| shard.pull_present(group, self.spec.dim, rows, absent));
        absent.sort_unstable();
        Ok(())
    }

    /// Sets the weights of `keys[i]` to `rows[i * dim..]`, where there is no row yet or `existing` says so. The optimizer
    /// starts afresh on a new row. Not a step.
    pub fn put(&self, keys: &[Key], rows: &[f32], existing: Existing, scratch: &mut Scratch) -> Result<()> {
        same_length("rows", keys.len().saturating_mul(self.spec.dim), rows.len())?;
        scratch.group(keys, self.shards.len())?;
        let birth = self.birth();
        self.visit(scratch, |shard, group| shard.put(group, &birth, rows, existing));
        Ok(())
    }

    /// One step of the table: applies `gradients[i * dim..]` to the row of `keys[i]`, creating rows that do not exist
    /// yet. A key named twice is updated twice, in order; other keys do not notice. A gradient that is not finite is
    /// refused and reported, and creates no row.
    ///
    /// An empty push is a step too: a server that holds none of a batch's keys keeps in step with the others.
    pub fn push(&self, keys: &[Key], gradients: &[f32], scratch: &mut Scratch) -> Result<PushReport> {
        same_length("gradients", keys.len().saturating_mul(self.spec.dim), gradients.len())?;
        scratch.group(keys, self.shards.len())?;
        let finished = self.step.fetch_add(1, Ordering::Relaxed);
        let update = self.spec.optimizer.at(self.spec.schedule.rate(finished) as f32, finished + 1);
        let birth = self.birth();
        let mut report = PushReport::default();
        self.visit(scratch, |shard, group| report.merge(shard.push(group, &update, &birth, gradients)));
        self.non_finite.fetch_add(report.non_finite as u64, Ordering::Relaxed);
        Ok(report)
    }

    /// Adds `deltas[i * dim..]` to the weights of `keys[i]` as they are, past the rule and its state: how GEO's
    /// differences arrive. A row that does not exist is created from its first values, which are what the sender's copy
    /// started from too. A difference that is not finite is refused and reported. Not a step.
    pub fn add(&self, keys: &[Key], deltas: &[f32], scratch: &mut Scratch) -> Result<PushReport> {
        same_length("deltas", keys.len().saturating_mul(self.spec.dim), deltas.len())?;
        scratch.group(keys, self.shards.len())?;
        let birth = self.birth();
        let mut report = PushReport::default();
        self.visit(scratch, |shard, group| report.merge(shard.add(group, &birth, deltas)));
        self.non_finite.fetch_add(report.non_finite as u64, Ordering::Relaxed);
        Ok(report)
    }

    /// Shows every row: key, weights, optimizer state (slot-major). Each shard is locked while its rows are shown, so
    /// `look` must not call the table. The order is by shard, then by creation.
    pub fn for_each(&self, mut look: impl FnMut(Key, &[f32], &[f32])) {
        for shard in &self.shards {
            for (key, row) in shard.lock().iter() {
                let (weights, state) = row.split_at(self.spec.dim);
                look(key, weights, state);
            }
        }
    }

    /// Shows the weights and state of one row, if it exists. The shard is locked while `look` runs.
    pub fn read<T>(&self, key: Key, look: impl FnOnce(&[f32], &[f32]) -> T) -> Option<T> {
        let shard = self.shard(key).lock();
        shard.find(&Wanted::new(key, 0)).map(|row| {
            let (weights, state) = row.split_at(self.spec.dim);
            look(weights, state)
        })
    }

    /// Sets a row, creating it where needed; without `state` the optimizer starts afresh on it.
    pub fn assign(&self, key: Key, weights: &[f32], state: Option<&[f32]>) -> Result<()> {
        let dim = self.spec.dim;
        same_length("weights", dim, weights.len())?;
        if let Some(state) = state {
            same_length("optimizer state", self.spec.optimizer.state_slots() * dim, state.len())?;
        }
        let birth = self.birth();
        let mut shard = self.shard(key).lock();
        let (row_weights, row_state) = shard.find_or_create(&Wanted::new(key, 0), &birth).split_at_mut(dim);
        row_weights.copy_from_slice(weights);
        match state {
            Some(state) => row_state.copy_from_slice(state),
            None => self.spec.optimizer.init_state(dim, row_state),
        }
        Ok(())
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Pushes so far.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    /// Continues from a saved step count.
    pub fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// The stamp that rows get from now on when they are pushed, or pulled with [`Missing::Create`]: a day, a pass,
    /// whatever the caller counts.
    pub fn set_stamp(&self, stamp: u32) {
        self.stamp.store(stamp, Ordering::Relaxed);
    }

    /// The stamp of a key's row: when it was last touched.
    pub fn stamp(&self, key: Key) -> Option<u32> {
        self.shard(key).lock().stamp(&Wanted::new(key, 0))
    }

    /// Weights in a row.
    pub fn dim(&self) -> usize {
        self.spec.dim
    }

    /// Gradients refused so far because they were not finite.
    pub fn non_finite(&self) -> u64 {
        self.non_finite.load(Ordering::Relaxed)
    }

    /// Bytes in use by rows and indexes.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().bytes()).sum()
    }

    /// What the table was made from.
    pub fn spec(&self) -> &SparseSpec {
        &self.spec
    }

    /// Runs each group through its shard, one lock at a time. A shard that is held is put off until the others are done
    /// rather than waited for: its holder may have lost its core to somebody else.
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

    fn birth(&self) -> Birth<'_> {
        Birth { spec: &self.spec, fans: self.fans, stamp: self.stamp.load(Ordering::Relaxed) }
    }

    fn shard(&self, key: Key) -> &Mutex<Shard> {
        &self.shards[shard_of(key, self.shards.len())]
    }
}
