//! A consistent snapshot of a table, read while the table continues to change.
//!
//! A cut marks every shard and copies nothing. From then on, before a row changes that was there and has not been read yet, a
//! copy of it is saved. All other rows are read in place, a few thousand per lock. Pushes wait for a few hundred microseconds
//! at most, and memory is needed only for rows that change before they are read. Copying whole shards would be simpler, but
//! right after the cut every push touches every shard, and the first push would copy the table.
//!
//! ```text
//! position   0 ........ next ................ rows ........
//!            read       | in place, or copied | added later, not part of the cut
//! ```
//!
//! A removed row is copied, and so is the row that takes its number: positions whose rows are copied are skipped, whatever is
//! there now.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use openfleet_core::Key;

use super::SparseTable;
use crate::accessor::{CtrFields, Row};
use crate::error::{Error, Result};
use crate::sparse::SparseSpec;

/// The part of a shard's cut that has not been read yet.
#[derive(Debug)]
pub(super) struct ShardCut {
    pub(super) spec: Arc<SparseSpec>,
    /// Number of rows at the time of the cut.
    pub(super) rows: u32,
    /// The first position that has not been read.
    pub(super) next: u32,
    /// One bit per position: its row is copied, or not part of the cut.
    is_copied: Vec<u64>,
    copied: CopiedRows,
    /// Buffer for accessors whose weights are not contiguous.
    pub(super) buffer: Vec<f32>,
}

/// Copies of rows, column by column.
#[derive(Debug, Default)]
struct CopiedRows {
    keys: Vec<Key>,
    stamps: Vec<u32>,
    weights: Vec<f32>,
    state: Vec<f32>,
    ctr: Vec<Option<CtrFields>>,
}

impl ShardCut {
    pub(super) fn new(spec: Arc<SparseSpec>, rows: u32) -> Self {
        let is_copied = vec![0; (rows as usize).div_ceil(64)];
        ShardCut { spec, rows, next: 0, is_copied, copied: CopiedRows::default(), buffer: Vec::new() }
    }

    /// Excludes rows from the cut; returns how many.
    pub(super) fn leave_out(&mut self, is_left_out: impl Fn(u32) -> bool) -> u32 {
        let mut left_out = 0;
        for (at, word) in (0..).zip(&mut self.is_copied) {
            for bit in 0..64.min(self.rows - at * 64) {
                *word |= u64::from(is_left_out(at * 64 + bit)) << bit;
            }
            left_out += word.count_ones();
        }
        left_out
    }

    /// Whether the row at a position still has to be read from there.
    #[inline(always)]
    pub(super) fn is_wanted(&self, position: u32) -> bool {
        (self.next..self.rows).contains(&position) && self.is_copied[position as usize / 64] >> (position % 64) & 1 == 0
    }

    /// Copies the row at a position.
    pub(super) fn copy_row(&mut self, position: u32, row: &Row<'_>) {
        self.is_copied[position as usize / 64] |= 1 << (position % 64);
        self.copied.keys.push(row.key);
        self.copied.stamps.push(row.stamp);
        self.copied.weights.extend_from_slice(row.weights);
        self.copied.state.extend_from_slice(row.state);
        self.copied.ctr.push(row.ctr);
    }

    /// Reads the copied rows, and frees their memory.
    pub(super) fn read_copied(&mut self, look: &mut impl FnMut(&Row<'_>)) {
        let CopiedRows { keys, stamps, weights, state, ctr } = std::mem::take(&mut self.copied);
        let (dim, floats) = (self.spec.dim, self.spec.state_len());
        for (at, key) in keys.into_iter().enumerate() {
            let (weights, state) = (&weights[at * dim..][..dim], &state[at * floats..][..floats]);
            look(&Row { key, stamp: stamps[at], weights, state, ctr: ctr[at] });
        }
    }

    pub(super) fn is_read(&self) -> bool {
        self.next == self.rows && self.copied.keys.is_empty()
    }
}

/// The rows of a table as they were when [`SparseTable::cut`] was called. Dropping it ends the copying.
#[derive(Debug)]
pub struct Cut {
    table: Arc<SparseTable>,
    /// Number of the cut: separates later changes from earlier ones.
    number: u16,
    since: Option<String>,
    rows: u64,
    table_rows: u64,
    removed: Vec<Key>,
    step: u64,
    stamp: u32,
    shard: usize,
}

impl SparseTable {
    /// Takes a snapshot; only one at a time. The caller must make sure that nothing changes the table during this call,
    /// otherwise the shards are not consistent. It locks each shard once; the time hardly depends on the number of rows (one
    /// bit each).
    pub fn cut(self: &Arc<Self>) -> Result<Cut> {
        self.cut_since(None)
    }

    /// [`cut`](Self::cut) of the rows that have changed since a save that this table knows: one that was
    /// [remembered](Cut::remember) or [loaded](Self::follows).
    pub fn cut_since(self: &Arc<Self>, save: Option<&str>) -> Result<Cut> {
        if self.is_cut.swap(true, Ordering::AcqRel) {
            return Err(Error::CutTwice);
        }
        // From here on, dropping it ends the cut.
        let (step, stamp) = (self.step(), self.stamp.load(Ordering::Relaxed));
        let since = save.map(str::to_owned);
        let (number, removed) = (0, Vec::new());
        let mut cut =
            Cut { table: self.clone(), number, since, rows: 0, table_rows: 0, removed, step, stamp, shard: 0 };
        let mut saves = self.saves.lock();
        let since = match save {
            None => None,
            Some(save) => {
                let number = saves.number_of(save);
                let number =
                    number.filter(|number| self.shards.iter().all(|shard| shard.lock().knows_changes(*number)));
                Some(number.ok_or_else(|| Error::UnknownSave { save: save.to_owned() })?)
            }
        };
        let new_cut = saves.close();
        let spec = Arc::new(self.spec.clone());
        for shard in &self.shards {
            let mut shard = shard.lock();
            cut.rows += u64::from(shard.cut(spec.clone(), since, &mut cut.removed));
            cut.table_rows += shard.len() as u64;
            shard.begin_changes(new_cut);
        }
        cut.number = new_cut.number;
        Ok(cut)
    }

    /// The rows were loaded from a save: the next save may be a delta since it.
    pub fn follows(&self, save: &str) {
        let mut saves = self.saves.lock();
        let new_cut = saves.close();
        self.shards.iter().for_each(|shard| shard.lock().begin_changes(new_cut));
        saves.remember(save, new_cut.number);
    }
}

impl Cut {
    /// Number of rows in the cut.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Number of rows in the table at the time of the cut.
    pub fn table_rows(&self) -> u64 {
        self.table_rows
    }

    /// The save that the rows have changed since; `None` if the cut has all rows.
    pub fn since(&self) -> Option<&str> {
        self.since.as_deref()
    }

    /// Keys whose rows were removed since that save; some may have a new row.
    pub fn removed(&self) -> &[Key] {
        &self.removed
    }

    /// The cut was saved under this id: a later cut may be a delta since it.
    pub fn remember(&self, save: &str) {
        self.table.saves.lock().remember(save, self.number);
    }

    /// Number of pushes before the cut.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The stamp of touched rows at the time of the cut.
    pub fn stamp(&self) -> u32 {
        self.stamp
    }

    /// The spec of the table.
    pub fn spec(&self) -> &SparseSpec {
        self.table.spec()
    }

    /// Calls `look` with about `most` more rows, while one shard is locked; `look` must not call the table. Returns whether
    /// there may be more. Every row is read exactly once, in no particular order.
    pub fn read(&mut self, most: u32, mut look: impl FnMut(&Row<'_>)) -> bool {
        let Some(shard) = self.table.shards.get(self.shard) else { return false };
        if self.table.read_cut(&mut shard.lock(), most, &mut look) {
            self.shard += 1;
        }
        true
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.table.shards.iter().for_each(|shard| shard.lock().end_cut());
        self.table.is_cut.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        Accessor, Adagrad, CtrOptions, Existing, Initializer, Missing, Optimizer, RowStorage, RowwiseAdagrad, Schedule,
        Scratch,
    };

    fn table(capacity: Option<usize>, accessor: Accessor) -> Arc<SparseTable> {
        Arc::new(
            SparseTable::new(SparseSpec {
                dim: 3,
                optimizer: Optimizer::Adagrad(Adagrad::default()),
                schedule: Schedule::Constant(0.5),
                regularizer: None,
                initializer: Initializer::Uniform { low: -1.0, high: 1.0 },
                seed: 7,
                shards: 2,
                accessor,
                admission: Default::default(),
                capacity,
                non_finite: Default::default(),
                salted: false,
                storage: Default::default(),
            })
            .unwrap(),
        )
    }

    type RowBits = (u32, Vec<u32>, Vec<u32>, Option<(u32, u32, u32, u32, bool)>);

    fn row_bits(row: &Row<'_>) -> (Key, RowBits) {
        let bits = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect();
        let ctr =
            row.ctr.map(|c| (c.show.to_bits(), c.click.to_bits(), c.delta_score.to_bits(), c.unseen_days, c.has_long));
        (row.key, (row.stamp, bits(row.weights), bits(row.state), ctr))
    }

    fn now(table: &SparseTable) -> BTreeMap<Key, RowBits> {
        let mut rows = BTreeMap::new();
        table.for_each_row(|row| rows.extend([row_bits(row)]));
        rows
    }

    #[derive(Debug, Clone)]
    enum Operation {
        Push(Vec<Key>),
        Add(Vec<Key>),
        Pull(Vec<Key>, u32),
        Put(Vec<Key>),
        Shrink(u32),
        EndOfDay,
        Read(u32),
    }

    fn operation() -> impl Strategy<Value = Operation> {
        let keys = || prop::collection::vec(0u64..60, 0..20);
        prop_oneof![
            keys().prop_map(Operation::Push),
            keys().prop_map(Operation::Add),
            (keys(), 0u32..9).prop_map(|(keys, stamp)| Operation::Pull(keys, stamp)),
            keys().prop_map(Operation::Put),
            (0u32..4).prop_map(Operation::Shrink),
            Just(Operation::EndOfDay),
            (0u32..15).prop_map(Operation::Read),
        ]
    }

    proptest! {
        #[test]
        fn a_cut_has_the_rows_of_its_time_whatever_changes_while_it_is_read(
            before in prop::collection::vec(0u64..60, 0..80),
            operations in prop::collection::vec(operation(), 0..30),
            capacity in prop::option::of(8usize..40),
            is_ctr: bool,
            is_small: bool,
        ) {
            let options = CtrOptions { embedx_threshold: 0.15, delete_threshold: 0.1, show_click_decay_rate: 0.5, ..CtrOptions::default() };
            let table = table(capacity, if is_ctr { Accessor::Ctr(options) } else { Accessor::Plain });
            // Row-wise state, and weights of 16 bits where the accessor allows it.
            let small = SparseSpec {
                optimizer: Optimizer::RowwiseAdagrad(RowwiseAdagrad::default()),
                storage: if is_ctr { RowStorage::Float32 } else { RowStorage::Bfloat16 },
                ..table.spec().clone()
            };
            let table = if is_small { Arc::new(SparseTable::new(small).unwrap()) } else { table };
            let mut scratch = Scratch::new();
            table.push(&before, &vec![0.25; before.len() * 3], &mut scratch).unwrap();
            let (expected, mut got) = (now(&table), BTreeMap::new());
            let mut cut = table.cut().unwrap();
            prop_assert_eq!(cut.rows(), expected.len() as u64);
            let mut times = 0;
            for operation in operations {
                let floats = |keys: &[Key]| vec![0.5; keys.len() * 3];
                match operation {
                    Operation::Push(keys) => drop(table.push(&keys, &floats(&keys), &mut scratch).unwrap()),
                    Operation::Add(_) if !table.spec().storage.is_float32() => {}
                    Operation::Add(keys) => drop(table.add(&keys, &floats(&keys), &mut scratch).unwrap()),
                    Operation::Pull(keys, stamp) => {
                        table.set_stamp(stamp);
                        table.pull(&keys, Missing::Create, &mut floats(&keys), &mut scratch).unwrap();
                    }
                    Operation::Put(keys) => table.put(&keys, &floats(&keys), Existing::Replace, &mut scratch).unwrap(),
                    Operation::Shrink(age) => drop(table.shrink(9, age)),
                    Operation::EndOfDay => table.end_of_day(),
                    Operation::Read(most) => drop(cut.read(most, |row| { times += 1; got.extend([row_bits(row)]) })),
                }
            }
            while cut.read(4, |row| { times += 1; got.extend([row_bits(row)]) }) {}
            prop_assert_eq!(times, expected.len(), "each row once");
            prop_assert_eq!(got, expected);
            drop(cut);
            prop_assert!(table.cut().is_ok(), "another one is possible afterwards");
        }
    }

    #[test]
    fn two_cuts_at_a_time_are_refused() {
        let table = table(None, Accessor::Plain);
        let first = table.cut().unwrap();
        assert_eq!(table.cut().unwrap_err(), Error::CutTwice);
        drop(first);
        assert!(table.cut().is_ok());
    }
}
