//! The rows of a shard.
//!
//! A row is 3 header words (key low, key high, last-seen stamp), followed by the floats of its accessor: for a plain table D
//! weights and the optimizer's slots. The header is before the weights instead of in separate arrays because a lookup reads
//! both: one run of cache lines instead of two. Header words are stored as the bits of floats, which copies preserve and no
//! code computes with.
//!
//! A row may have a long part in a second store, as rows of the ctr accessor with a high enough score have; only the accessor
//! knows which rows have one and where it is. This file knows no hashes and no rules.

use openfleet_core::Key;

use super::slabs::Slabs;

const HEADER: usize = 3;

/// Bytes of a row with its header and its long part.
pub(super) fn row_bytes(floats: usize, long_floats: usize) -> usize {
    (HEADER + floats + long_floats) * size_of::<f32>()
}

/// Rows by number, without gaps.
#[derive(Debug)]
pub(crate) struct Rows {
    slabs: Slabs,
    /// Long parts by number, without gaps.
    pub(crate) long: Slabs,
}

impl Rows {
    /// An empty store of rows with `floats` floats each, and long parts with `long_floats`.
    pub(crate) fn new(floats: usize, long_floats: usize) -> Self {
        Rows { slabs: Slabs::new(HEADER + floats), long: Slabs::new(long_floats) }
    }

    pub(super) fn len(&self) -> u32 {
        self.slabs.len()
    }

    /// Floats of a row, without its header and its long part.
    pub(super) fn floats(&self) -> usize {
        self.slabs.width() - HEADER
    }

    pub(super) fn bytes(&self) -> usize {
        self.slabs.bytes() + self.long.bytes()
    }

    #[inline(always)]
    pub(crate) fn key(&self, row: u32) -> Key {
        let row = self.slabs.get(row);
        Key::from(row[0].to_bits()) | Key::from(row[1].to_bits()) << 32
    }

    #[inline(always)]
    pub(crate) fn stamp(&self, row: u32) -> u32 {
        self.slabs.get(row)[2].to_bits()
    }

    /// Sets the stamp of a row. An equal stamp is not written again, to keep the cache line clean.
    #[inline(always)]
    pub(super) fn set_stamp(&mut self, row: u32, stamp: u32) {
        if self.stamp(row) != stamp {
            self.slabs.get_mut(row)[2] = f32::from_bits(stamp);
        }
    }

    /// The accessor's floats of a row.
    #[inline(always)]
    pub(crate) fn get(&self, row: u32) -> &[f32] {
        &self.slabs.get(row)[HEADER..]
    }

    /// The accessor's floats of a row, mutable.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, row: u32) -> &mut [f32] {
        &mut self.slabs.get_mut(row)[HEADER..]
    }

    /// Prefetches the header and the first `floats` floats of a row.
    #[inline(always)]
    pub(super) fn prefetch(&self, row: u32, floats: usize) {
        self.slabs.prefetch(row, HEADER + floats);
    }

    /// Adds a row of zeros and returns its number.
    pub(super) fn push(&mut self, key: Key, stamp: u32) -> u32 {
        let row = self.slabs.push();
        let header = self.slabs.get_mut(row);
        header[0] = f32::from_bits(key as u32);
        header[1] = f32::from_bits((key >> 32) as u32);
        header[2] = f32::from_bits(stamp);
        row
    }

    /// Removes a row without its long part; the last row takes its number. Returns whether a row was moved.
    pub(super) fn swap_remove(&mut self, row: u32) -> bool {
        self.slabs.swap_remove(row)
    }

    /// Frees memory that is not needed now.
    pub(super) fn release(&mut self) {
        self.slabs.release();
        self.long.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_stamps_survive_as_bits_even_where_they_spell_a_nan() {
        let mut rows = Rows::new(2, 0);
        let key = 0x7fa0_0001_ffbf_ffff; // both halves are signalling NaNs
        let row = rows.push(key, 0x7f80_0001);
        assert_eq!((rows.key(row), rows.stamp(row)), (key, 0x7f80_0001));
    }
}
