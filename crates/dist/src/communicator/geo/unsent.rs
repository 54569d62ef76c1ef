//! The rows of a table that this worker has changed since it last sent them: what the servers have of them (the base), and how often
//! they were used.
//!
//! A row that is not here is as the servers have it, except for changes by other workers that have not arrived.
//!
//! All workers train the rows that most batches use, each from its own copy. The more often a worker trains such a row between two
//! exchanges, the further the copies move apart, and the sum of their progress overshoots. So a row that was used
//! [`OFTEN`](UnsentRows::OFTEN) times is exchanged before its window ends.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use openfleet_core::Key;
use openfleet_table::geo::KeyHasher;

/// The changed rows of one table.
#[derive(Debug, Default)]
pub(super) struct UnsentRows {
    dim: usize,
    rows: HashMap<Key, Unsent, BuildHasherDefault<KeyHasher>>,
    /// The base of each row, by its slot.
    base: Vec<f32>,
    free_slots: Vec<u32>,
    /// Keys that were used often enough; each has 0 uses, or more if it was used again.
    often: Vec<Key>,
}

#[derive(Debug, Clone, Copy)]
struct Unsent {
    slot: u32,
    /// How often the row was used since it was last part of a window or of the often used rows.
    uses: u32,
}

impl UnsentRows {
    /// Uses after which a row is exchanged early. With 5 and rows every 400 batches, two workers reach the AUC of sync mode.
    const OFTEN: u32 = 5;

    /// No row of `dim` floats has changed.
    pub(super) fn new(dim: usize) -> Self {
        UnsentRows { dim, ..UnsentRows::default() }
    }

    /// Records the distinct keys of a batch that is about to change their rows. Returns the keys whose base has to be set.
    pub(super) fn add(&mut self, keys: &[Key]) -> Vec<Key> {
        let mut new = Vec::new();
        for &key in keys {
            let unsent = self.rows.entry(key).or_insert_with(|| {
                new.push(key);
                let slot = self.free_slots.pop().unwrap_or_else(|| {
                    self.base.resize(self.base.len() + self.dim, 0.0);
                    (self.base.len() / self.dim - 1) as u32
                });
                Unsent { slot, uses: 0 }
            });
            unsent.uses += 1;
            if unsent.uses == UnsentRows::OFTEN {
                unsent.uses = 0;
                self.often.push(key);
            }
        }
        new
    }

    /// What the servers have of a row that has changed.
    pub(super) fn base(&mut self, key: Key) -> Option<&mut [f32]> {
        let slot = self.rows.get(&key)?.slot as usize;
        self.base.get_mut(slot * self.dim..(slot + 1) * self.dim)
    }

    /// The row is as the servers have it.
    pub(super) fn remove(&mut self, key: Key) {
        if let Some(unsent) = self.rows.remove(&key) {
            self.free_slots.push(unsent.slot);
        }
    }

    /// All keys, in ascending order.
    pub(super) fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.rows.keys().copied().collect();
        keys.sort_unstable();
        keys
    }

    /// Takes the keys of the rows that should be exchanged early, each once, in ascending order.
    pub(super) fn take_often_used(&mut self) -> Vec<Key> {
        let mut keys = std::mem::take(&mut self.often);
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Begins a new window. Returns the keys of all rows that were used since they were last exchanged, each once, in ascending
    /// order.
    pub(super) fn close_window(&mut self) -> Vec<Key> {
        let mut keys = std::mem::take(&mut self.often);
        for (&key, unsent) in self.rows.iter_mut().filter(|(_, unsent)| unsent.uses > 0) {
            unsent.uses = 0;
            keys.push(key);
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_exchanged_early_each_time_it_was_used_often() {
        let mut unsent = UnsentRows::new(1);
        (0..4).for_each(|_| drop(unsent.add(&[1, 2])));
        assert!(unsent.take_often_used().is_empty());
        unsent.add(&[2, 3]);
        assert_eq!(unsent.take_often_used(), [2]);
        (0..10).for_each(|_| drop(unsent.add(&[2])));
        assert_eq!(unsent.take_often_used(), [2], "once, however often it was used meanwhile");
        assert_eq!(unsent.close_window(), [1, 3], "what was exchanged and not used since is left out");
        unsent.add(&[2]);
        assert_eq!(unsent.close_window(), [2]);
        assert_eq!(unsent.keys(), [1, 2, 3], "rows are here until they are sent");
    }

    #[test]
    fn a_window_has_all_its_keys_once() {
        let mut unsent = UnsentRows::new(1);
        (0..10_000u64).for_each(|batch| drop(unsent.add(&[batch % 7, 1000 - batch % 11])));
        unsent.add(&[3, 999]);
        assert_eq!(unsent.close_window(), (0..7).chain(990..=1000).collect::<Vec<Key>>());
        assert!(unsent.close_window().is_empty());
    }

    #[test]
    fn a_row_keeps_its_base_until_it_is_removed_and_its_memory_is_used_again() {
        let mut unsent = UnsentRows::new(2);
        assert_eq!(unsent.add(&[7, 8]), [7, 8]);
        unsent.base(7).unwrap().copy_from_slice(&[1.0, 2.0]);
        unsent.base(8).unwrap().copy_from_slice(&[3.0, 4.0]);
        assert!(unsent.add(&[7]).is_empty());
        assert_eq!(unsent.base(7).unwrap(), [1.0, 2.0]);
        unsent.remove(7);
        assert!(unsent.base(7).is_none());
        assert_eq!(unsent.add(&[9, 8]), [9]);
        unsent.base(9).unwrap().fill(5.0);
        assert_eq!((unsent.base(8).unwrap().to_vec(), unsent.base.len()), (vec![3.0, 4.0], 4));
    }
}
