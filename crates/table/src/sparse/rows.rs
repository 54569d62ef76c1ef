//! The rows of a shard, in slabs that never move.
//!
//! A row is 3 header words (key low, key high, last-seen stamp), then D weights, then the optimizer's slots. The header
//! lies before the weights rather than in arrays of its own because a lookup reads both: one run of cache lines instead
//! of two. Header words are kept as the bits of floats, which copies preserve and nobody computes with.
//!
//! Growth adds a slab and copies nothing. Only the first slab grows like a vector, so that a table of ten rows does not
//! reserve megabytes in each shard. This file knows no hashes and no rules.

use openfleet_core::Key;

use super::prefetch::prefetch;

const HEADER: usize = 3;
/// Large enough that the page an allocator adds to each slab does not count, small enough to be reserved ahead.
const SLAB_BYTES: usize = 2 << 20;

/// Rows by number, in the order of their creation.
#[derive(Debug)]
pub(super) struct Rows {
    slabs: Vec<Vec<f32>>,
    /// Floats of a row, header included.
    width: usize,
    slab_shift: u32,
    len: u32,
}

impl Rows {
    /// An empty store of rows with `floats` floats each.
    pub(super) fn new(floats: usize) -> Self {
        let width = HEADER + floats;
        let rows_per_slab = (SLAB_BYTES / (width * size_of::<f32>())).max(16);
        Rows { slabs: vec![Vec::new()], width, slab_shift: rows_per_slab.ilog2(), len: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Floats of a row, without its header.
    pub(super) fn floats(&self) -> usize {
        self.width - HEADER
    }

    /// Bytes of the rows in use; a reserved slab costs nothing until its pages are written.
    pub(super) fn bytes(&self) -> usize {
        self.len as usize * self.width * size_of::<f32>()
    }

    #[inline(always)]
    pub(super) fn key(&self, row: u32) -> Key {
        let row = self.whole(row);
        Key::from(row[0].to_bits()) | Key::from(row[1].to_bits()) << 32
    }

    #[inline(always)]
    pub(super) fn stamp(&self, row: u32) -> u32 {
        self.whole(row)[2].to_bits()
    }

    /// Marks the row as seen; a stamp that is already there is not written again, to leave the line clean.
    #[inline(always)]
    pub(super) fn set_stamp(&mut self, row: u32, stamp: u32) {
        if self.stamp(row) != stamp {
            self.whole_mut(row)[2] = f32::from_bits(stamp);
        }
    }

    /// Weights and state.
    #[inline(always)]
    pub(super) fn get(&self, row: u32) -> &[f32] {
        &self.whole(row)[HEADER..]
    }

    /// Weights and state.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, row: u32) -> &mut [f32] {
        &mut self.whole_mut(row)[HEADER..]
    }

    /// Asks for the header and the first `floats` floats of a row.
    #[inline(always)]
    pub(super) fn prefetch(&self, row: u32, floats: usize) {
        let (slab, start) = self.place(row);
        prefetch(&self.slabs[slab], start, HEADER + floats);
    }

    /// Adds a row of zeros and gives its number.
    pub(super) fn push(&mut self, key: Key, stamp: u32) -> u32 {
        let row = self.len;
        assert!(row < u32::MAX - 1, "a shard numbers its rows in 32 bits; give the table more shards");
        let (slab, start) = self.place(row);
        if slab == self.slabs.len() {
            self.slabs.push(Vec::with_capacity(self.width << self.slab_shift));
        }
        let slab = &mut self.slabs[slab];
        if start + self.width > slab.capacity() {
            // Only the first slab: from 16 rows by doubling to the size of the others exactly.
            slab.reserve_exact(start.max(16 * self.width));
        }
        slab.resize(start + self.width, 0.0);
        slab[start] = f32::from_bits(key as u32);
        slab[start + 1] = f32::from_bits((key >> 32) as u32);
        slab[start + 2] = f32::from_bits(stamp);
        self.len += 1;
        row
    }

    #[inline(always)]
    fn place(&self, row: u32) -> (usize, usize) {
        let row = row as usize;
        (row >> self.slab_shift, (row & ((1 << self.slab_shift) - 1)) * self.width)
    }

    #[inline(always)]
    fn whole(&self, row: u32) -> &[f32] {
        let (slab, start) = self.place(row);
        &self.slabs[slab][start..start + self.width]
    }

    #[inline(always)]
    fn whole_mut(&mut self, row: u32) -> &mut [f32] {
        let (slab, start) = self.place(row);
        &mut self.slabs[slab][start..start + self.width]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_stamps_survive_as_bits_even_where_they_spell_a_nan() {
        let mut rows = Rows::new(2);
        let key = 0x7fa0_0001_ffbf_ffff; // both halves are signalling NaNs
        let row = rows.push(key, 0x7f80_0001);
        assert_eq!((rows.key(row), rows.stamp(row)), (key, 0x7f80_0001));
    }

    #[test]
    fn rows_keep_their_values_while_slabs_are_added() {
        let mut rows = Rows::new(1000);
        for key in 0..1000u64 {
            let row = rows.push(key, 0);
            rows.get_mut(row)[999] = key as f32;
        }
        assert!(rows.slabs.len() > 1);
        assert!((0..1000u32).all(|row| rows.key(row) == Key::from(row) && rows.get(row)[999] == row as f32));
    }
}
