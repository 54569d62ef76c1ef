//! Deduplicates the ids of a batch, and records where every id went.
//!
//! One third of the ids of a click batch are distinct, so pulling, updating and pushing rows start here: only the distinct keys
//! are sent, and `inverse` maps their rows back to every id. This runs over all ids of every step.
//!
//! The index is a power-of-two table of `u32` positions in `keys`, with linear probing from a multiplicative hash. Nothing is
//! ever cleared: a table slot is valid only if the position in it points back at the slot (`slot_of`), and leftovers of earlier
//! batches do not. So `start` costs nothing however large the table is, and its size can follow the batches down as well as up.
//!
//! The order is that of first occurrence: it depends only on the ids, not on earlier batches. This module does not know what a
//! key means, or which slot it came from.

use crate::key::Key;

/// Reusable scratch that lists distinct ids in the order of first occurrence.
///
/// ```
/// let mut unique = openfleet_core::Unique::new();
/// unique.start(5);
/// unique.add(&[7, 9, 7]);
/// unique.add(&[9, 0]);
/// assert_eq!(unique.keys(), [7, 9, 0]);
/// assert_eq!(unique.inverse(), [0, 1, 0, 1, 2]);
/// ```
#[derive(Debug, Clone)]
pub struct Unique {
    /// Table slot -> position in `keys`, or a leftover: see `slot_of`. Only the first `2^bits` slots are in use.
    table: Vec<u32>,
    bits: u32,
    /// The distinct ids are the first `count`; the rest is free space and leftovers.
    keys: Vec<Key>,
    /// Position in `keys` -> its table slot. As long as `keys`.
    slot_of: Vec<u32>,
    count: usize,
    inverse: Vec<u32>,
}

/// Slots per distinct id before the table doubles. With half as many, collisions cost a fifth of the speed; twice as many gain
/// nothing and use more cache.
const SLOTS_PER_KEY: usize = 4;
/// 1,024 slots, 4 KB.
const SMALLEST_BITS: u32 = 10;

impl Unique {
    /// Empty scratch.
    pub fn new() -> Self {
        let mut unique = Unique {
            table: Vec::new(),
            bits: SMALLEST_BITS,
            keys: Vec::new(),
            slot_of: Vec::new(),
            count: 0,
            inverse: Vec::new(),
        };
        unique.fit_table();
        unique
    }

    /// Removes the last batch and prepares for `expected` ids. There may be more; fewer waste nothing.
    pub fn start(&mut self, expected: usize) {
        // As many distinct ids as last time plus an eighth: an estimate that avoids growing in the middle of a batch, and
        // shrinks the table back into the cache after an unusual one.
        let likely = self.count + self.count / 8;
        self.bits = (likely * SLOTS_PER_KEY).next_power_of_two().trailing_zeros().max(SMALLEST_BITS);
        self.fit_table();
        self.count = 0;
        self.inverse.clear();
        self.inverse.reserve(expected);
    }

    /// Appends ids.
    pub fn add(&mut self, ids: &[Key]) {
        self.add_salted(ids, 0);
    }

    /// Appends `id ^ salt` for each id: with one salt per slot, equal ids of two slots are two keys. Salt 0 appends the ids
    /// unchanged.
    pub fn add_salted(&mut self, ids: &[Key], salt: u64) {
        let mut rest = ids;
        while !rest.is_empty() {
            let room = self.room();
            if room == 0 {
                self.grow();
                continue;
            }
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.add_within_room(now, salt);
            rest = later;
        }
    }

    /// The distinct ids in the order of first occurrence.
    pub fn keys(&self) -> &[Key] {
        &self.keys[..self.count]
    }

    /// For each id in the order of appending, its position in `keys`.
    pub fn inverse(&self) -> &[u32] {
        &self.inverse
    }

    /// Appends ids that fit even if all are new, so that the loop has one branch: collision or not. Whether an id is new cannot
    /// be predicted by the processor, so both cases execute the same stores with different values, and `&` is used where `&&`
    /// would branch: 1.5 times as fast as the branching loop. A leftover position is in bounds, because `keys` never shrinks.
    fn add_within_room(&mut self, ids: &[Key], salt: u64) {
        let mask = (1_usize << self.bits) - 1;
        let shift = 64 - self.bits;
        let table = &mut self.table[..=mask];
        let keys = &mut self.keys[..];
        let slot_of = &mut self.slot_of[..keys.len()];
        let mut count = self.count;
        self.inverse.extend(ids.iter().map(|&id| {
            let id = id ^ salt;
            let mut slot = (hash(id) >> shift) as usize & mask;
            loop {
                let position = table[slot] as usize;
                let taken = (position < count) & (slot_of[position] == slot as u32);
                let known = taken & (keys[position] == id);
                if taken & !known {
                    slot = (slot + 1) & mask;
                    continue;
                }
                let found = if known { position } else { count };
                table[slot] = found as u32;
                keys[count] = id;
                slot_of[count] = slot as u32;
                count += usize::from(!known);
                return found as u32;
            }
        }));
        self.count = count;
    }

    /// How many ids can be appended before the table must double.
    fn room(&self) -> usize {
        (1 << self.bits) / SLOTS_PER_KEY - self.count
    }

    /// Doubles the table and inserts every key again.
    #[cold]
    fn grow(&mut self) {
        self.bits += 1;
        assert!(self.bits <= 32, "a batch has at most 2^30 distinct ids");
        self.fit_table();
        let mask = (1_usize << self.bits) - 1;
        for position in 0..self.count {
            let mut slot = (hash(self.keys[position]) >> (64 - self.bits)) as usize;
            // Keys before `position` are already inserted; everything else in the table is a leftover.
            while (self.table[slot] as usize) < position && self.slot_of[self.table[slot] as usize] == slot as u32 {
                slot = (slot + 1) & mask;
            }
            self.table[slot] = position as u32;
            self.slot_of[position] = slot as u32;
        }
    }

    /// Allocates memory for `2^bits` slots, and for as many keys as they may hold plus one: the main loop writes each id after
    /// the last key before it knows whether to keep it.
    fn fit_table(&mut self) {
        let slots = 1_usize << self.bits;
        if self.table.len() < slots {
            self.table.resize(slots, 0);
            self.keys.resize(slots / SLOTS_PER_KEY + 1, 0);
            self.slot_of.resize(slots / SLOTS_PER_KEY + 1, 0);
        }
    }
}

impl Default for Unique {
    fn default() -> Self {
        Unique::new()
    }
}

/// Fibonacci hashing: one multiplication, whose highest bits are used. Ids chosen to collide make it slow, never wrong;
/// `key::mix` would cost a sixth of the speed on every batch.
#[inline(always)]
fn hash(id: Key) -> u64 {
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn check(unique: &mut Unique, slices: &[Vec<Key>]) {
        unique.start(slices.iter().map(Vec::len).sum());
        slices.iter().for_each(|ids| unique.add(ids));
        let (mut keys, mut positions, mut inverse) = (Vec::new(), HashMap::new(), Vec::new());
        for &id in slices.iter().flatten() {
            inverse.push(*positions.entry(id).or_insert_with(|| {
                keys.push(id);
                keys.len() as u32 - 1
            }));
        }
        assert_eq!(unique.keys(), keys);
        assert_eq!(unique.inverse(), inverse);
    }

    #[test]
    fn an_empty_batch_has_no_keys() {
        let mut unique = Unique::new();
        assert!(unique.keys().is_empty() && unique.inverse().is_empty());
        check(&mut unique, &[vec![], vec![]]);
    }

    #[test]
    fn ids_may_be_zero_and_the_largest() {
        check(&mut Unique::new(), &[vec![0, u64::MAX, 0], vec![u64::MAX, 1]]);
    }

    #[test]
    fn keys_may_be_read_between_two_adds() {
        let mut unique = Unique::new();
        unique.start(2);
        unique.add(&[5]);
        assert_eq!((unique.keys(), unique.inverse()), ([5].as_slice(), [0].as_slice()));
        unique.add(&[6, 5]);
        assert_eq!((unique.keys(), unique.inverse()), ([5, 6].as_slice(), [0, 1, 0].as_slice()));
    }

    #[test]
    fn a_batch_larger_than_expected_grows_the_table() {
        let mut unique = Unique::new();
        unique.start(0);
        unique.add(&(0..100_000).collect::<Vec<Key>>());
        assert_eq!(unique.keys().len(), 100_000);
        assert!(unique.inverse().iter().enumerate().all(|(at, &position)| at == position as usize));
    }

    #[test]
    fn a_small_batch_after_a_large_one_works_in_a_small_table_again() {
        let mut unique = Unique::new();
        check(&mut unique, &[(0..50_000).collect()]);
        let large = unique.bits;
        check(&mut unique, &[vec![1, 2, 1]]);
        check(&mut unique, &[vec![1, 2, 1]]);
        assert!(unique.bits < large);
        check(&mut unique, &[(40_000..90_000).chain(0..1000).collect()]);
    }

    #[test]
    fn ids_that_all_collide_are_still_told_apart() {
        // Multiples of the inverse of the hash's factor hash to small numbers: all of them hash to table slot 0.
        let factor = hash(1);
        let mut inverse = 1_u64;
        for _ in 0..6 {
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(inverse)));
        }
        let ids: Vec<Key> = (0..3000_u64).map(|n| n.wrapping_mul(inverse)).collect();
        assert!(ids.iter().all(|&id| hash(id) < 3000));
        check(&mut Unique::new(), &[ids.clone(), ids]);
    }

    proptest! {
        #[test]
        fn every_batch_through_one_scratch_agrees_with_a_hash_map(
            batches in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(
                    prop_oneof![0_u64..40, 0_u64..5000, any::<u64>(), (0_u64..300).prop_map(|high| high << 55)],
                    0..900), 0..4),
                1..5)
        ) {
            let mut unique = Unique::new();
            batches.iter().for_each(|slices| check(&mut unique, slices));
        }
    }
}
