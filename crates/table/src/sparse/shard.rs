//! One shard: an index over rows, and how a group of keys runs through it.
//!
//! Keys are taken in batches of [`BATCH`]: ask for all their index entries, then for all their rows, then work. The
//! misses of a batch overlap, which is worth a factor of four at ten million rows. The lock is the table's; a shard
//! is called with it held.

use openfleet_core::Key;

use super::rows::Rows;
use super::scratch::Wanted;
use super::{Existing, Missing, SparseSpec};
use crate::clip::all_finite;
use crate::initializer::Fans;
use crate::optimizer::{self, Step};
use crate::push::PushReport;
use crate::sparse::index::Index;

/// Lookups in flight together. More than a core's outstanding misses, few enough to stay in the first-level cache.
const BATCH: usize = 128;

/// No row: the key is absent, or its gradient was refused.
const NONE: u32 = u32::MAX;

/// Part of a table behind one lock, on cache lines of its own: neighbours are locked by other threads.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    index: Index,
    rows: Rows,
}

/// What a new row is made from, and the stamp that touched rows get.
#[derive(Debug, Clone, Copy)]
pub(super) struct Birth<'a> {
    pub(super) spec: &'a SparseSpec,
    pub(super) fans: Fans,
    pub(super) stamp: u32,
}

impl Shard {
    pub(super) fn new(spec: &SparseSpec) -> Self {
        Shard { index: Index::new(), rows: Rows::new(spec.dim * (1 + spec.optimizer.state_slots())) }
    }

    /// Copies the weights of each wanted key to its place in `out`.
    pub(super) fn pull(&mut self, group: &[Wanted], missing: Missing, birth: &Birth<'_>, out: &mut [f32]) {
        let dim = birth.spec.dim;
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(batch, dim, &mut hints);
            for (wanted, hint) in batch.iter().zip(hints) {
                let place = &mut out[wanted.at as usize * dim..][..dim];
                let row = match (self.settle(wanted, hint), missing) {
                    (Some(row), _) => row,
                    (None, Missing::Create) => self.create(wanted, birth),
                    (None, Missing::Initial) => {
                        birth.spec.initializer.row(birth.spec.seed, wanted.key, birth.fans, place);
                        continue;
                    }
                };
                if missing == Missing::Create {
                    self.rows.set_stamp(row, birth.stamp);
                }
                place.copy_from_slice(&self.rows.get(row)[..dim]);
            }
        }
    }

    /// Copies the weights of each wanted key that has a row to its place in `out`; names the places of the others.
    pub(super) fn pull_present(&self, group: &[Wanted], dim: usize, out: &mut [f32], absent: &mut Vec<u32>) {
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(batch, dim, &mut hints);
            for (wanted, hint) in batch.iter().zip(hints) {
                match self.settle(wanted, hint) {
                    Some(row) => {
                        out[wanted.at as usize * dim..][..dim].copy_from_slice(&self.rows.get(row)[..dim]);
                    }
                    None => absent.push(wanted.at),
                }
            }
        }
    }

    /// Sets the weights of each wanted key that has no row, or of all of them.
    pub(super) fn put(&mut self, group: &[Wanted], birth: &Birth<'_>, rows: &[f32], existing: Existing) {
        let dim = birth.spec.dim;
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(batch, dim, &mut hints);
            for (wanted, hint) in batch.iter().zip(hints) {
                let row = match (self.settle(wanted, hint), existing) {
                    (Some(_), Existing::Keep) => continue,
                    (Some(row), Existing::Replace) => row,
                    (None, _) => self.create(wanted, birth),
                };
                self.rows.get_mut(row)[..dim].copy_from_slice(&rows[wanted.at as usize * dim..][..dim]);
            }
        }
    }

    /// Applies to each wanted key its gradient; rows that do not exist are created first.
    pub(super) fn push(&mut self, group: &[Wanted], update: &Step, birth: &Birth<'_>, gradients: &[f32]) -> PushReport {
        let dim = birth.spec.dim;
        let mut report = PushReport::default();
        let mut numbers = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(batch, self.rows.floats(), &mut numbers);
            for (wanted, number) in batch.iter().zip(&mut numbers) {
                if !all_finite(&gradients[wanted.at as usize * dim..][..dim]) {
                    // Refused before its row is looked for, so that it creates none.
                    report.non_finite += 1;
                    *number = NONE;
                    continue;
                }
                report.applied += 1;
                let row = self.settle(wanted, *number).unwrap_or_else(|| self.create(wanted, birth));
                self.rows.set_stamp(row, birth.stamp);
                *number = row;
            }
            let mut touched = Touched { rows: &mut self.rows, batch, numbers: &numbers, gradients, dim, next: 0 };
            update.apply_rows(birth.spec.regularizer.as_ref(), dim, &mut touched);
        }
        report
    }

    /// Adds to the weights of each wanted key its difference; rows that do not exist are created first.
    pub(super) fn add(&mut self, group: &[Wanted], birth: &Birth<'_>, deltas: &[f32]) -> PushReport {
        let dim = birth.spec.dim;
        let mut report = PushReport::default();
        let mut hints = [NONE; BATCH];
        for batch in group.chunks(BATCH) {
            self.look_ahead(batch, dim, &mut hints);
            for (wanted, hint) in batch.iter().zip(hints) {
                let delta = &deltas[wanted.at as usize * dim..][..dim];
                if !all_finite(delta) {
                    report.non_finite += 1;
                    continue;
                }
                report.applied += 1;
                let row = self.settle(wanted, hint).unwrap_or_else(|| self.create(wanted, birth));
                self.rows.set_stamp(row, birth.stamp);
                for (weight, difference) in self.rows.get_mut(row)[..dim].iter_mut().zip(delta) {
                    *weight += difference;
                }
            }
        }
        report
    }

    /// The row of a single key.
    pub(super) fn find(&self, wanted: &Wanted) -> Option<&[f32]> {
        self.settle(wanted, NONE).map(|row| self.rows.get(row))
    }

    /// The last-seen stamp of a single key.
    pub(super) fn stamp(&self, wanted: &Wanted) -> Option<u32> {
        self.settle(wanted, NONE).map(|row| self.rows.stamp(row))
    }

    /// The row of a single key, created where there is none.
    pub(super) fn find_or_create(&mut self, wanted: &Wanted, birth: &Birth<'_>) -> &mut [f32] {
        let row = self.settle(wanted, NONE).unwrap_or_else(|| self.create(wanted, birth));
        self.rows.set_stamp(row, birth.stamp);
        self.rows.get_mut(row)
    }

    /// Every key with its row, in the order of creation.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &[f32])> {
        (0..self.rows.len()).map(|row| (self.rows.key(row), self.rows.get(row)))
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len() as usize
    }

    pub(super) fn bytes(&self) -> usize {
        self.index.bytes() + self.rows.bytes()
    }

    /// For each key of a batch the row it probably has, with its first `floats` floats on their way to the cache.
    #[inline(always)]
    fn look_ahead(&self, batch: &[Wanted], floats: usize, hints: &mut [u32; BATCH]) {
        for wanted in batch {
            self.index.prefetch(wanted.tag);
        }
        for (wanted, hint) in batch.iter().zip(hints) {
            *hint = self.index.find(wanted.tag, |_| true).unwrap_or(NONE);
            if *hint != NONE {
                self.rows.prefetch(*hint, floats);
            }
        }
    }

    /// The row of a key, trying the hint first. A hint is wrong where two keys share a tag, and none where the key was
    /// created a moment ago, by a duplicate in the same batch.
    #[inline(always)]
    fn settle(&self, wanted: &Wanted, hint: u32) -> Option<u32> {
        if hint != NONE && self.rows.key(hint) == wanted.key {
            return Some(hint);
        }
        self.index.find(wanted.tag, |row| self.rows.key(row) == wanted.key)
    }

    #[cold]
    fn create(&mut self, wanted: &Wanted, birth: &Birth<'_>) -> u32 {
        let spec = birth.spec;
        let row = self.rows.push(wanted.key, birth.stamp);
        let (weights, state) = self.rows.get_mut(row).split_at_mut(spec.dim);
        spec.initializer.row(spec.seed, wanted.key, birth.fans, weights);
        spec.optimizer.init_state(spec.dim, state);
        self.index.insert(wanted.tag, row);
        row
    }
}

/// The rows of a batch that a rule is to change, with their gradients.
struct Touched<'a> {
    rows: &'a mut Rows,
    batch: &'a [Wanted],
    numbers: &'a [u32; BATCH],
    gradients: &'a [f32],
    dim: usize,
    next: usize,
}

impl optimizer::Rows for Touched<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<(&mut [f32], &mut [f32], &[f32])> {
        loop {
            let wanted = self.batch.get(self.next)?;
            let row = self.numbers[self.next];
            self.next += 1;
            if row != NONE {
                let (weights, state) = self.rows.get_mut(row).split_at_mut(self.dim);
                return Some((weights, state, &self.gradients[wanted.at as usize * self.dim..][..self.dim]));
            }
        }
    }
}
