//! Feature ids, and the two hashes that all processes agree on.
//!
//! A key is 64 bits without further meaning; id 0 is as valid as any other. Both hashes are part of the file formats
//! (checkpoints, placement, trained models): they never change within a format version, and never depend on the process, the
//! machine or a random seed, as Python's `hash` does.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A feature id.
pub type Key = u64;

/// A map whose keys are feature ids.
pub type KeyMap<V> = HashMap<Key, V, BuildHasherDefault<KeyHasher>>;

/// A set of feature ids.
pub type KeySet = HashSet<Key, BuildHasherDefault<KeyHasher>>;

/// Spreads keys that differ in few bits over all 64 (the finalizer of MurmurHash3, a bijection).
#[inline(always)]
pub fn mix(key: Key) -> u64 {
    let mut h = key;
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^= h >> 33;
    h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}

/// One round of mixing: keys come from authenticated workers, and the standard hasher takes five times as long.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write_u64(&mut self, key: u64) {
        self.0 = mix(key);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = mix(self.0 ^ u64::from(*byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The key of a categorical value in a slot: XXH3 of its bytes, seeded with the slot's number, so that the same text in two
/// slots gives two features.
#[inline]
pub fn of_category(slot: u32, text: &[u8]) -> Key {
    xxhash_rust::xxh3::xxh3_64_with_seed(text, u64::from(slot))
}

/// The salt of a slot: XXH3 of its name. The key of an id in a salted slot is `id ^ salt`, so equal ids of two slots are two
/// features; the same operation gives the id back.
///
/// Two slots share a key only if two of their ids differ by exactly the difference of the salts, which is 64 random bits: small
/// ids never do in practice, and random ids no more often than without salts.
pub fn salt(slot: &str) -> u64 {
    of_category(0, slot.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn category_keys_are_the_published_xxh3_values() {
        // The value of XXH3's reference implementation for the empty input with seed 0.
        assert_eq!(of_category(0, b""), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn the_same_text_in_two_slots_is_two_keys() {
        assert_ne!(of_category(1, b"68fd1e64"), of_category(2, b"68fd1e64"));
    }

    #[test]
    fn salted_small_ids_of_many_slots_are_all_different_keys() {
        let keys = (1..=100).flat_map(|slot| (0..1000).map(move |id| id ^ salt(&format!("C{slot}"))));
        assert_eq!(keys.collect::<std::collections::HashSet<Key>>().len(), 100 * 1000);
    }

    #[test]
    fn mix_is_the_murmur3_finalizer() {
        assert_eq!(mix(0), 0);
        assert_eq!(mix(1), 0xb456_bcfc_34c2_cb2c);
    }
}
