//! The server's side of geo mode: which changes each worker has not received yet.
//!
//! In geo mode workers train on copies and send differences, which a server adds to its tables directly
//! ([`SparseTable::add`](crate::SparseTable::add), [`DenseTable::add`](crate::DenseTable::add)). This file tracks, per worker,
//! the keys that others have changed since its last exchange:
//!
//! ```text
//! A sends deltas of K:    add(K, deltas);  record(A, K)      B and C have to fetch K, A does not
//! B asks:                 take_changed(B)                    K, once; its rows are read at that time
//! ```
//!
//! The sender's keys are not recorded for itself; PaddlePaddle records them too and sends every row back. The sender does not
//! need them: it has added the same difference to the same base, bit by bit, unless another worker changed the row in between,
//! and then that change is in its set. Values are read when they are fetched, so ten changes of a row are one row to fetch, and
//! a set never has more than the distinct keys of the table.

use std::collections::BTreeMap;

use openfleet_core::Key;
use openfleet_core::key::KeySet;
use serde::{Deserialize, Serialize};

/// Per worker, the keys of one sparse table whose rows other workers have changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<u32, Vec<Key>>", into = "BTreeMap<u32, Vec<Key>>")]
pub struct Changed {
    workers: BTreeMap<u32, KeySet>,
}

impl Changed {
    /// No workers, and no changes.
    pub fn new() -> Self {
        Changed::default()
    }

    /// Adds a worker: it receives all changes from now on. Idempotent.
    pub fn join(&mut self, worker: u32) {
        self.workers.entry(worker).or_default();
    }

    /// Removes a worker and frees its set.
    pub fn leave(&mut self, worker: u32) {
        self.workers.remove(&worker);
    }

    /// Records that `from` changed the rows of `keys`, for all other workers. A key may appear twice.
    pub fn record(&mut self, from: u32, keys: &[Key]) {
        for (_, changed) in self.workers.iter_mut().filter(|(worker, _)| **worker != from) {
            changed.extend(keys);
        }
    }

    /// Takes the keys that a worker has to fetch, ascending, each once. Empty for a worker that has not joined.
    pub fn take_changed(&mut self, worker: u32) -> Vec<Key> {
        let Some(changed) = self.workers.get_mut(&worker) else { return Vec::new() };
        // Drained and not replaced: the next round needs about as much memory. Sorted because the order of a hash set is
        // arbitrary.
        let mut keys: Vec<Key> = changed.drain().collect();
        keys.sort_unstable();
        keys
    }

    /// A worker has read the rows of `keys` in another way, such as a pull: they need not be sent to it.
    pub fn forget(&mut self, worker: u32, keys: &[Key]) {
        if let Some(changed) = self.workers.get_mut(&worker).filter(|changed| !changed.is_empty()) {
            keys.iter().for_each(|key| {
                changed.remove(key);
            });
        }
    }

    /// Puts keys back that were taken for a reply that never arrived.
    pub fn put_back(&mut self, worker: u32, keys: &[Key]) {
        if let Some(changed) = self.workers.get_mut(&worker) {
            changed.extend(keys);
        }
    }

    /// How many rows a worker has to fetch.
    pub fn pending(&self, worker: u32) -> usize {
        self.workers.get(&worker).map_or(0, KeySet::len)
    }

    /// The workers that take part, in order.
    pub fn workers(&self) -> impl Iterator<Item = u32> {
        self.workers.keys().copied()
    }
}

/// Sorted, so that equal states are saved as equal bytes.
impl From<Changed> for BTreeMap<u32, Vec<Key>> {
    fn from(mut changed: Changed) -> Self {
        let workers: Vec<u32> = changed.workers().collect();
        workers.into_iter().map(|worker| (worker, changed.take_changed(worker))).collect()
    }
}

impl From<BTreeMap<u32, Vec<Key>>> for Changed {
    fn from(workers: BTreeMap<u32, Vec<Key>>) -> Self {
        Changed { workers: workers.into_iter().map(|(worker, keys)| (worker, keys.into_iter().collect())).collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: u32 = 0;
    const B: u32 = 1;
    const C: u32 = 2;

    fn three() -> Changed {
        let mut changed = Changed::new();
        [A, B, C].into_iter().for_each(|worker| changed.join(worker));
        changed
    }

    #[test]
    fn a_row_changed_by_one_worker_reaches_every_other_exactly_once() {
        let mut changed = three();
        changed.record(A, &[9, 4, 9]);
        changed.record(A, &[4, 1]);
        assert_eq!(changed.take_changed(B), [1, 4, 9]);
        assert!(changed.take_changed(B).is_empty());
        assert!(changed.take_changed(A).is_empty(), "the sender has added the same difference itself");
        assert_eq!(changed.take_changed(C), [1, 4, 9]);
    }

    #[test]
    fn a_row_that_two_workers_changed_reaches_both() {
        let mut changed = three();
        changed.record(A, &[1]);
        changed.record(B, &[1]);
        assert_eq!([A, B, C].map(|worker| changed.take_changed(worker)), [[1], [1], [1]]);
    }

    #[test]
    fn a_worker_that_left_costs_nothing_and_one_that_joins_gets_later_changes() {
        let mut changed = three();
        changed.record(A, &[1]);
        changed.leave(B);
        changed.record(A, &[2]);
        assert_eq!((changed.pending(B), changed.take_changed(B)), (0, vec![]));
        changed.join(B);
        changed.record(C, &[3]);
        assert_eq!((changed.take_changed(B), changed.take_changed(A)), (vec![3], vec![3]));
        assert_eq!(changed.workers().collect::<Vec<_>>(), [A, B, C]);
    }

    #[test]
    fn rows_read_another_way_are_not_sent_again_and_a_lost_reply_is_put_back() {
        let mut changed = three();
        changed.record(A, &[1, 2, 3]);
        changed.forget(B, &[2, 7]);
        let taken = changed.take_changed(B);
        assert_eq!(taken, [1, 3]);
        changed.put_back(B, &taken);
        assert_eq!(changed.take_changed(B), [1, 3]);
    }

    proptest! {
        #[test]
        fn every_change_arrives_at_the_others_and_sets_stay_within_the_distinct_keys(
            steps in prop::collection::vec((0u32..4, prop::collection::vec(0u64..30, 0..20), any::<bool>()), 0..60),
        ) {
            let mut changed = Changed::new();
            (0..4).for_each(|worker| changed.join(worker));
            let mut expected = vec![std::collections::BTreeSet::new(); 4];
            for (worker, keys, takes) in steps {
                changed.record(worker, &keys);
                for (other, set) in expected.iter_mut().enumerate().filter(|(other, _)| *other != worker as usize) {
                    set.extend(keys.iter().copied());
                    prop_assert_eq!(changed.pending(other as u32), set.len());
                }
                if takes {
                    let taken: Vec<Key> = std::mem::take(&mut expected[worker as usize]).into_iter().collect();
                    prop_assert_eq!(changed.take_changed(worker), taken);
                }
            }
            let saved = serde_json::to_string(&changed).unwrap();
            prop_assert_eq!(serde_json::from_str::<Changed>(&saved).unwrap(), changed);
        }
    }
}
