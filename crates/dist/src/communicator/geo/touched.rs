//! The keys that the batches of a window have used, and how often.
//!
//! All workers train the rows that most batches use, each from its own copy. The more often a worker trains such a row between two
//! exchanges, the further the copies move apart, and the sum of their progress overshoots. So a row that was used
//! [`OFTEN`](Touched::OFTEN) times is exchanged before its window ends.

use std::collections::HashMap;

use openfleet_core::Key;
use openfleet_table::geo::KeyHasher;

/// The keys of a window of one table.
#[derive(Debug, Clone, Default)]
pub(super) struct Touched {
    /// How often each key was used since its row was last exchanged.
    uses: HashMap<Key, u32, std::hash::BuildHasherDefault<KeyHasher>>,
    /// Keys that were used often enough; each has 0 uses, or more if it was used again.
    often: Vec<Key>,
}

impl Touched {
    /// Uses after which a row is exchanged early. With 5 and rows every 400 batches, two workers reach the AUC of sync mode.
    const OFTEN: u32 = 5;

    /// Records the distinct keys of a batch.
    pub(super) fn add(&mut self, keys: &[Key]) {
        for &key in keys {
            let uses = self.uses.entry(key).or_default();
            *uses += 1;
            if *uses == Touched::OFTEN {
                *uses = 0;
                self.often.push(key);
            }
        }
    }

    /// Takes the keys of the rows that should be exchanged early, each once, in ascending order.
    pub(super) fn take_often_used(&mut self) -> Vec<Key> {
        let mut keys = std::mem::take(&mut self.often);
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// The keys of all rows that may have changed since they were last exchanged, each once, in ascending order.
    pub(super) fn into_keys(mut self) -> Vec<Key> {
        let mut keys = self.take_often_used();
        keys.extend(self.uses.into_iter().filter(|(_, uses)| *uses > 0).map(|(key, _)| key));
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
        let mut touched = Touched::default();
        (0..4).for_each(|_| touched.add(&[1, 2]));
        assert!(touched.take_often_used().is_empty());
        touched.add(&[2, 3]);
        assert_eq!(touched.take_often_used(), [2]);
        (0..10).for_each(|_| touched.add(&[2]));
        assert_eq!(touched.take_often_used(), [2], "once, however often it was used meanwhile");
        assert_eq!(touched.clone().into_keys(), [1, 3], "what was exchanged and not used since is left out");
        touched.add(&[2]);
        assert_eq!(touched.into_keys(), [1, 2, 3]);
    }

    #[test]
    fn a_window_has_all_its_keys_once() {
        let mut touched = Touched::default();
        (0..10_000u64).for_each(|batch| touched.add(&[batch % 7, 1000 - batch % 11]));
        touched.add(&[3, 999]);
        assert_eq!(touched.into_keys(), (0..7).chain(990..=1000).collect::<Vec<Key>>());
    }
}
