//! What the rows of a shard were before they were pushed, for a table that is a copy: its owner is sent how much they have changed.
//!
//! ```text
//!                 push: base = the row, then it changes
//!   as the owner <--------------------------------------> changed, with a base
//!                 the whole difference is taken
//! ```
//!
//! A row has a base only while it differs from what the owner has, as far as this table knows. The base is set and the row changed
//! under the same lock of the shard, so nothing comes between.
//!
//! Pushes of each row are counted too: rows that are pushed often are worth sending early.

use openfleet_core::Key;

use super::prefetch::prefetch;

/// The bases of one shard.
#[derive(Debug)]
pub(super) struct Bases {
    dim: usize,
    /// Pushes after which a row is listed as often used.
    often: u32,
    /// By the number of a row; may be shorter than the rows.
    rows: Vec<Base>,
    /// The values of each base, by its slot.
    values: Vec<f32>,
    free_slots: Vec<u32>,
    /// Keys that were used often enough; each was counted from 0 again.
    often_used: Vec<Key>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Base {
    /// The slot of the values, counted from 1; 0 for no base.
    slot: u32,
    /// Pushes since the row was last listed, in a window or as often used.
    uses: u32,
}

impl Bases {
    /// No row of `dim` weights has changed; a row is listed as often used after `often` pushes.
    pub(super) fn new(dim: usize, often: u32) -> Self {
        Bases { dim, often, rows: Vec::new(), values: Vec::new(), free_slots: Vec::new(), often_used: Vec::new() }
    }

    /// Prefetches what is known of a row.
    #[inline(always)]
    pub(super) fn prefetch(&self, row: u32) {
        prefetch(&self.rows, row as usize, 1);
    }

    /// A row is about to be pushed. Returns where its weights have to be copied to if it has no base yet.
    #[inline(always)]
    pub(super) fn before_push(&mut self, row: u32, key: Key) -> Option<&mut [f32]> {
        let number = row as usize;
        if number >= self.rows.len() {
            self.rows.resize(number + 1, Base::default());
        }
        let base = &mut self.rows[number];
        base.uses += 1;
        if base.uses == self.often {
            base.uses = 0;
            self.often_used.push(key);
        }
        if base.slot > 0 {
            return None;
        }
        base.slot = self.free_slots.pop().unwrap_or_else(|| {
            self.values.resize(self.values.len() + self.dim, 0.0);
            (self.values.len() / self.dim) as u32
        });
        self.get(row)
    }

    /// The base of a row that has changed.
    #[inline(always)]
    pub(super) fn get(&mut self, row: u32) -> Option<&mut [f32]> {
        let slot = self.rows.get(row as usize)?.slot.checked_sub(1)? as usize;
        self.values.get_mut(slot * self.dim..(slot + 1) * self.dim)
    }

    /// The row is as its owner has it.
    pub(super) fn remove(&mut self, row: u32) {
        if let Some(base) = self.rows.get_mut(row as usize).filter(|base| base.slot > 0) {
            self.free_slots.push(std::mem::take(&mut base.slot));
        }
    }

    /// The row is deleted, and the last row takes its number.
    pub(super) fn deleted(&mut self, row: u32, last: u32) {
        self.remove(row);
        let moved = self.rows.get(last as usize).copied().unwrap_or_default();
        if let Some(base) = self.rows.get_mut(row as usize) {
            *base = moved;
        }
        self.rows.truncate(last as usize);
    }

    /// Takes the keys of the often used rows. A key is listed twice if it was used often twice.
    pub(super) fn take_often_used(&mut self, keys: &mut Vec<Key>) {
        keys.append(&mut self.often_used);
    }

    /// Lists the rows that were pushed since they were last listed, and counts them from 0 again.
    pub(super) fn take_used(&mut self, mut list: impl FnMut(u32)) {
        for (row, base) in self.rows.iter_mut().enumerate().filter(|(_, base)| base.uses > 0) {
            base.uses = 0;
            list(row as u32);
        }
    }

    /// Rows with a base.
    pub(super) fn changed(&self) -> impl Iterator<Item = u32> {
        self.rows.iter().enumerate().filter(|(_, base)| base.slot > 0).map(|(row, _)| row as u32)
    }

    pub(super) fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Base>() + self.values.capacity() * size_of::<f32>()
    }
}
