//! How often keys were seen that have no row yet.
//!
//! Most ids of a click log are seen once or twice, and anybody can make up more, so what is kept for a key that is not
//! admitted must be small and bounded: 16 bytes, in buckets of eight that double up to a limit. A key may stand in
//! either of two buckets, which lets them fill to nine tenths before they have to double. Counts are exact until the
//! limit is reached. From then on a newcomer takes the place of the least counted key of a bucket, and the one unseen
//! for longest there loses a count: a flood of ids seen once displaces its own kind first, and nothing stays for good.
//! A displaced key starts again from nothing, so it is admitted later than it should be, never earlier.

use openfleet_core::Key;
use openfleet_core::key::mix;

/// Keys of a bucket, most recently seen first, free places last.
const WAYS: usize = 8;

/// Counts by key.
#[derive(Debug)]
pub(super) struct UnadmittedCounts {
    /// Bucket after bucket, a power of two of them or none.
    entries: Vec<CountEntry>,
    /// The most places there may be.
    limit: usize,
}

/// A key with its counts; free where both are 0.
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
    /// Room for about `limit` keys at most; none is taken before the first key comes.
    pub(super) fn new(limit: usize) -> Self {
        UnadmittedCounts { entries: Vec::new(), limit: limit.max(WAYS) }
    }

    /// Adds to the counts of a key and gives what they are now.
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
                // Nothing to remember, and a place without counts would be a free one in the midst of the others.
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
            // The last of the least counted: the one unseen for longest among them, and a free place above all.
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

    /// Forgets a key, which has a row now.
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

    /// Twice as many buckets, where that is allowed. Each bucket's keys go to the two that take its place, so all fit.
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

    /// The buckets a key may stand in.
    fn buckets_of(&self, key: Key) -> [usize; 2] {
        // Neither the shard's bits nor placement's: a shard's keys share those.
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
        assert_eq!(waiting.bytes(), 4096 * 16, "twice as many places as keys at most");
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
        assert!(kept > 50 * 19 * 9 / 10, "{kept} of {} counts went on", 50 * 19);
    }

    #[test]
    fn adding_nothing_takes_no_place() {
        let mut waiting = UnadmittedCounts::new(WAYS);
        add_once(&mut waiting, 0..WAYS as u64 - 1);
        assert_eq!(waiting.add(50, 0.0, 0.0), (0.0, 0.0));
        add_once(&mut waiting, 60..61);
        assert_eq!(waiting.add(0, 1.0, 0.0), (2.0, 0.0), "the last place was still free");
    }

    #[test]
    fn a_key_nobody_sees_any_more_makes_way() {
        let mut waiting = UnadmittedCounts::new(WAYS);
        (0..3).for_each(|_| add_once(&mut waiting, 0..WAYS as u64));
        add_once(&mut waiting, 100..200);
        assert!(waiting.entries.iter().all(|entry| entry.key >= 100));
    }
}
