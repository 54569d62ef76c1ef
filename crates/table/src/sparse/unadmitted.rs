//! Counts of keys that have no row yet.
//!
//! Most ids of a click log are seen once or twice, and anyone can make up more, so a key that is not admitted must use little
//! and bounded memory: 16 bytes, in buckets of eight that double up to a limit. A key may be in either of two buckets, which
//! lets them fill to nine tenths before they have to double. Counts are exact until the limit is reached. From then on, a new
//! key replaces the least counted key of a bucket, and the one that was unseen for longest there loses a count: a flood of ids
//! seen once replaces its own kind first, and nothing stays forever. A replaced key starts from zero again, so it is admitted
//! later than it should be, never earlier.

use openfleet_core::Key;
use openfleet_core::key::mix;

/// Keys per bucket, most recently seen first, free entries last.
const WAYS: usize = 8;

/// Counts by key.
#[derive(Debug)]
pub(super) struct UnadmittedCounts {
    /// Bucket after bucket; the number of buckets is a power of two, or 0.
    entries: Vec<CountEntry>,
    /// Maximum number of entries.
    limit: usize,
}

/// A key with its counts; free if both are 0.
#[derive(Debug, Clone, Copy, Default)]
struct CountEntry {
    key: Key,
    show: f32,
    click: f32,
}

impl CountEntry {
    fn is_free(&self) -> bool {
        self.show == 0.0 && self.click == 0.0
    }
}

impl UnadmittedCounts {
    /// Space for at most about `limit` keys; allocates nothing before the first key.
    pub(super) fn new(limit: usize) -> Self {
        UnadmittedCounts { entries: Vec::new(), limit: limit.max(WAYS) }
    }

    /// Adds to the counts of a key and returns the sums.
    pub(super) fn add(&mut self, key: Key, show: f32, click: f32) -> (f32, f32) {
        if self.entries.is_empty() {
            self.entries.resize(WAYS, CountEntry::default());
        }
        loop {
            let buckets = self.buckets_of(key);
            for number in buckets {
                let bucket = self.bucket(number);
                if let Some(at) = bucket.iter().position(|entry| entry.key == key && !entry.is_free()) {
                    bucket[..=at].rotate_right(1);
                    bucket[0].show += show;
                    bucket[0].click += click;
                    return (bucket[0].show, bucket[0].click);
                }
            }
            if show == 0.0 && click == 0.0 {
                // There is nothing to count, and an entry without counts would be a free one between the others.
                return (0.0, 0.0);
            }
            let used = buckets.map(|number| self.bucket(number).iter().filter(|entry| !entry.is_free()).count());
            let emptier = usize::from(used[1] < used[0]);
            if used[emptier] == WAYS && self.grow() {
                continue;
            }
            let bucket = self.bucket(buckets[emptier]);
            let oldest = &mut bucket[WAYS - 1];
            oldest.show = (oldest.show - 1.0).max(0.0);
            // The last of the least counted entries: the one unseen for longest, or preferably a free one.
            let mut least = WAYS - 1;
            for at in (0..WAYS - 1).rev() {
                if bucket[at].show < bucket[least].show && !bucket[least].is_free() {
                    least = at;
                }
            }
            bucket[..=least].rotate_right(1);
            bucket[0] = CountEntry { key, show, click };
            return (show, click);
        }
    }

    /// Forgets a key that has a row now.
    pub(super) fn forget(&mut self, key: Key) {
        if self.entries.is_empty() {
            return;
        }
        for number in self.buckets_of(key) {
            let bucket = self.bucket(number);
            if let Some(at) = bucket.iter().position(|entry| entry.key == key && !entry.is_free()) {
                bucket[at..].rotate_left(1);
                bucket[WAYS - 1] = CountEntry::default();
                return;
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * size_of::<CountEntry>()
    }

    /// Doubles the number of buckets, if that is allowed. Each bucket's keys go to the two buckets that replace it, so all fit.
    fn grow(&mut self) -> bool {
        if self.entries.len() * 2 > self.limit {
            return false;
        }
        let wider = vec![CountEntry::default(); self.entries.len() * 2];
        let old = std::mem::replace(&mut self.entries, wider);
        for (at, entry) in old.into_iter().enumerate().filter(|(_, entry)| !entry.is_free()) {
            let [first, second] = self.buckets_of(entry.key);
            let bucket = self.bucket(if first / 2 == at / WAYS { first } else { second });
            if let Some(free) = bucket.iter_mut().find(|entry| entry.is_free()) {
                *free = entry;
            }
        }
        true
    }

    /// The two buckets of a key.
    fn buckets_of(&self, key: Key) -> [usize; 2] {
        // Use neither the shard's bits nor placement's: the keys of a shard share those.
        let hash = mix(key ^ 0x94d0_49bb_1331_11eb);
        let count = (self.entries.len() / WAYS) as u64;
        [hash >> 32, hash & 0xffff_ffff].map(|half| ((half * count) >> 32) as usize)
    }

    fn bucket(&mut self, number: usize) -> &mut [CountEntry] {
        &mut self.entries[number * WAYS..][..WAYS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_once(waiting: &mut UnadmittedCounts, keys: std::ops::Range<Key>) {
        for key in keys {
            waiting.add(key, 1.0, 0.0);
        }
    }

    #[test]
    fn counts_are_exact_while_there_is_room() {
        let mut waiting = UnadmittedCounts::new(1 << 16);
        for round in 1..=5 {
            for key in 0..2_000 {
                assert_eq!(waiting.add(key, 1.0, 0.5), (round as f32, round as f32 * 0.5));
            }
        }
        (0..2_000).step_by(2).for_each(|key| waiting.forget(key));
        assert_eq!(waiting.bytes(), 4096 * 16, "at most twice as many entries as keys");
        assert_eq!((waiting.add(4, 1.0, 0.0), waiting.add(5, 1.0, 0.0)), ((1.0, 0.0), (6.0, 2.5)));
    }

    #[test]
    fn a_flood_of_new_keys_stays_within_the_limit_and_leaves_regular_ones_their_counts() {
        let mut waiting = UnadmittedCounts::new(1024);
        let regular: Vec<Key> = (0..50).collect();
        let mut kept = 0;
        for round in 0..20u64 {
            for key in &regular {
                kept += usize::from(waiting.add(*key, 1.0, 0.0).0 > 1.0);
            }
            add_once(&mut waiting, 1_000_000 + round * 200..1_000_200 + round * 200);
        }
        assert!(waiting.bytes() <= 1024 * 16);
        assert!(kept > 50 * 19 * 9 / 10, "{kept} of {} counts were kept", 50 * 19);
    }

    #[test]
    fn adding_nothing_takes_no_place() {
        let mut waiting = UnadmittedCounts::new(WAYS);
        add_once(&mut waiting, 0..WAYS as u64 - 1);
        assert_eq!(waiting.add(50, 0.0, 0.0), (0.0, 0.0));
        add_once(&mut waiting, 60..61);
        assert_eq!(waiting.add(0, 1.0, 0.0), (2.0, 0.0), "the last entry was still free");
    }

    #[test]
    fn a_key_that_is_no_longer_seen_is_replaced() {
        let mut waiting = UnadmittedCounts::new(WAYS);
        (0..3).for_each(|_| add_once(&mut waiting, 0..WAYS as u64));
        add_once(&mut waiting, 100..200);
        assert!(waiting.entries.iter().all(|entry| entry.key >= 100));
    }
}
