//! Records of equal width, numbered from 0 without gaps, in slabs.
//!
//! Growth adds a slab and copies nothing. Only the first slab grows like a vector, so that a table of ten rows does not reserve
//! megabytes in each shard. Removal moves the last record into the gap, so there are never holes, and empty slabs at the end
//! are freed. This file only knows floats.

use super::huge_pages::use_huge_pages;
use super::prefetch::prefetch;

/// Large enough that the parts of a slab at its ends that are not on huge pages do not matter, small enough to be reserved ahead.
const SLAB_BYTES: usize = 16 << 20;

/// Records by number.
#[derive(Debug)]
pub(crate) struct Slabs {
    slabs: Vec<Vec<f32>>,
    /// Floats per record.
    width: usize,
    slab_shift: u32,
    len: u32,
}

impl Slabs {
    /// An empty store of records with `width` floats each.
    pub(super) fn new(width: usize) -> Self {
        let per_slab = (SLAB_BYTES / (width.max(1) * size_of::<f32>())).max(16);
        Slabs { slabs: vec![Vec::new()], width, slab_shift: per_slab.ilog2(), len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Bytes of the records in use; a reserved slab costs nothing until its pages are written.
    pub(super) fn bytes(&self) -> usize {
        self.len as usize * self.width * size_of::<f32>()
    }

    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> &[f32] {
        let (slab, start) = self.place(number);
        &self.slabs[slab][start..start + self.width]
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut [f32] {
        let (slab, start) = self.place(number);
        &mut self.slabs[slab][start..start + self.width]
    }

    /// Prefetches the first `floats` floats of a record, or as many as there are.
    #[inline(always)]
    pub(crate) fn prefetch(&self, number: u32, floats: usize) {
        let (slab, start) = self.place(number);
        prefetch(&self.slabs[slab], start, floats.min(self.width));
    }

    /// Adds a record of zeros and returns its number.
    pub(crate) fn push(&mut self) -> u32 {
        let number = self.len;
        assert!(number < u32::MAX - 1, "a shard numbers its rows in 32 bits; give the table more shards");
        let (slab, start) = self.place(number);
        let full = self.width << self.slab_shift;
        if slab == self.slabs.len() {
            let mut new = Vec::with_capacity(full);
            use_huge_pages(new.spare_capacity_mut());
            self.slabs.push(new);
        }
        let slab = &mut self.slabs[slab];
        if start + self.width > slab.capacity() {
            // The first slab doubles from 16 records up to exactly the size of the others; a last slab that was truncated grows
            // in the same way.
            slab.reserve_exact(start.max(16 * self.width).min(full - start));
        }
        slab.resize(start + self.width, 0.0);
        self.len += 1;
        number
    }

    /// Removes a record; the last one takes its number. Returns whether a record was moved.
    pub(crate) fn swap_remove(&mut self, number: u32) -> bool {
        let last = self.len - 1;
        let ((slab, start), (last_slab, last_start)) = (self.place(number), self.place(last));
        let (head, tail) = self.slabs.split_at_mut(last_slab);
        let from = &mut tail[0];
        if slab == last_slab {
            from.copy_within(last_start..last_start + self.width, start);
        } else {
            head[slab][start..start + self.width].copy_from_slice(&from[last_start..last_start + self.width]);
        }
        from.truncate(last_start);
        self.len = last;
        // Keep one empty slab at the end, so that adding and removing a record there does not allocate each time.
        self.slabs.truncate(last_slab + 2);
        number != last
    }

    /// Frees memory that is not needed now.
    pub(super) fn release(&mut self) {
        let in_use = (self.len as usize).div_ceil(1 << self.slab_shift).max(1);
        self.slabs.truncate(in_use);
        self.slabs[in_use - 1].shrink_to_fit();
        self.slabs.shrink_to_fit();
    }

    /// Floats that fit into the slabs.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slabs.iter().map(Vec::capacity).sum()
    }

    #[inline(always)]
    fn place(&self, number: u32) -> (usize, usize) {
        let number = number as usize;
        (number >> self.slab_shift, (number & ((1 << self.slab_shift) - 1)) * self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 512 records in a slab.
    const WIDTH: usize = 8000;

    #[test]
    fn records_keep_their_values_while_slabs_are_added() {
        let mut slabs = Slabs::new(WIDTH);
        for value in 0..1000 {
            let number = slabs.push();
            slabs.get_mut(number)[WIDTH - 1] = value as f32;
        }
        assert!(slabs.slabs.len() > 1);
        assert!((0..1000).all(|number| slabs.get(number)[WIDTH - 1] == number as f32));
    }

    #[test]
    fn the_last_record_fills_the_gap_and_empty_slabs_are_given_back() {
        let mut slabs = Slabs::new(WIDTH);
        (0..3000).for_each(|value| {
            let number = slabs.push();
            slabs.get_mut(number)[0] = value as f32;
        });
        let full = slabs.capacity();
        assert!(slabs.swap_remove(3));
        assert_eq!((slabs.len(), slabs.get(3)[0], slabs.get(4)[0]), (2999, 2999.0, 4.0));
        assert!(!slabs.swap_remove(2998), "the last one leaves no gap");
        while slabs.len() > 10 {
            slabs.swap_remove(0);
        }
        assert!(slabs.capacity() <= full / 2, "at most one slab waits behind the last in use");
        slabs.release();
        assert_eq!(slabs.capacity(), 10 * WIDTH);
        let number = slabs.push();
        assert_eq!(slabs.get(number), [0.0; WIDTH], "nothing of an earlier record shows");
    }
}
