//! Putting the rows of a checkpoint back into a table.

use parking_lot::MutexGuard;

use super::scratch::{Wanted, shard_of};
use super::shard::Shard;
use super::{SparseTable, with_layout};
use crate::accessor::{Accessor, CtrFields, NewRow, Plain, PlainBfloat16, Row, RowStorage};
use crate::error::{Result, same_length};

/// Puts saved rows back into a table.
///
/// Rows are inserted in batches, so that the index entries they need are prefetched together. Saved rows are mostly sorted by
/// shard, so the lock of a shard is held from one row to the next: no other thread should use the table meanwhile.
pub struct RowRestorer<'a> {
    table: &'a SparseTable,
    with_state: bool,
    /// The number of a shard, and its lock.
    held: Option<(usize, MutexGuard<'a, Shard>)>,
    /// Rows of that shard that are not inserted yet.
    pending: Vec<PendingRow>,
    /// Weights and state of those rows, one row after the other.
    floats: Vec<f32>,
}

/// A row that is not inserted yet, without its floats.
struct PendingRow {
    wanted: Wanted,
    stamp: u32,
    ctr: Option<CtrFields>,
}

/// Rows in one batch.
const RESTORED_TOGETHER: usize = 32;

impl<'a> RowRestorer<'a> {
    pub(super) fn new(table: &'a SparseTable, with_state: bool) -> Self {
        RowRestorer { table, with_state, held: None, pending: Vec::new(), floats: Vec::new() }
    }

    /// Puts back one row. The row is in the table when this is dropped, at the latest.
    ///
    /// # Errors
    ///
    /// If the row has another number of weights or of state floats than the table.
    pub fn restore(&mut self, row: &Row<'_>) -> Result<()> {
        let spec = &self.table.spec;
        same_length("weights", spec.dim, row.weights.len())?;
        let state = if self.with_state { row.state } else { &[] };
        if self.with_state {
            same_length("optimizer state", spec.state_len(), state.len())?;
        }
        let number = shard_of(row.key, self.table.shards.len());
        if self.pending.len() == RESTORED_TOGETHER || self.held.as_ref().is_some_and(|(held, _)| *held != number) {
            self.put_back();
        }
        if self.held.as_ref().is_none_or(|(held, _)| *held != number) {
            // Unlock first: no thread holds two shard locks.
            self.held = None;
            self.held = Some((number, self.table.shards[number].lock()));
        }
        let wanted = Wanted::new(row.key, 0);
        if let Some((_, shard)) = &self.held {
            shard.prefetch(&wanted);
        }
        self.pending.push(PendingRow { wanted, stamp: row.stamp, ctr: row.ctr });
        self.floats.extend_from_slice(row.weights);
        self.floats.extend_from_slice(state);
        Ok(())
    }

    fn put_back(&mut self) {
        let Some((_, shard)) = &mut self.held else { return };
        let (spec, new_row) = (&self.table.spec, self.table.new_row());
        let width = self.floats.len() / self.pending.len().max(1);
        for (row, floats) in self.pending.drain(..).zip(self.floats.chunks_exact(width.max(1))) {
            let (weights, state) = floats.split_at(spec.dim);
            let (state, new_row) = (self.with_state.then_some(state), NewRow { stamp: row.stamp, ..new_row });
            with_layout!(spec, layout => shard.restore(layout, &row.wanted, &new_row, weights, state, row.ctr));
        }
        self.floats.clear();
    }
}

impl Drop for RowRestorer<'_> {
    fn drop(&mut self) {
        self.put_back();
    }
}
