//! Finds the row of a key: open addressing with 8-byte entries.
//!
//! An entry is `tag << 32 | (row + 1)`; 0 is empty. The tag is 32 bits of the key's hash and also determines the entry's home
//! (`tag * capacity >> 32`), so the index grows from its own entries, in order and without reading rows, and any capacity is
//! possible, not only powers of two: growing by an eighth keeps 0.67 to 0.75 of the entries in use (12 bytes per row at most),
//! where doubling would keep 0.37 to 0.75 (up to 21). Two keys may share a tag; the index does not know keys, the caller
//! compares them.

use super::huge_pages::use_huge_pages;
use super::prefetch::prefetch;

/// Entries of an empty index.
const FIRST_ENTRIES: usize = 16;

/// Entries of an index that was full with `entries`.
fn grown(entries: usize) -> usize {
    entries + entries / 8 + 16
}

/// Maps tags to rows.
#[derive(Debug)]
pub(crate) struct Index {
    entries: Vec<u64>,
    used: usize,
}

impl Index {
    pub(crate) fn new() -> Self {
        Index { entries: vec![0; FIRST_ENTRIES], used: 0 }
    }

    /// An index with capacity for this many rows.
    pub(crate) fn with_capacity(rows: usize) -> Self {
        let mut index = Index { entries: Vec::new(), used: 0 };
        index.resize(rows + rows / 2 + 16);
        index
    }

    /// Reserves capacity for this many more rows.
    pub(crate) fn reserve(&mut self, rows: usize) {
        let wanted = self.used + rows;
        let wanted = wanted + wanted / 2 + 16;
        if self.entries.len() < wanted {
            self.resize(wanted);
            if self.used == 0 {
                // Pages that are read before they are written fault twice, and the second fault interrupts every core.
                std::hint::black_box(&mut self.entries).fill(0);
            }
        }
    }

    /// Prefetches the entries where a lookup of `tag` begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, tag: u32) {
        prefetch(&self.entries, self.home(tag), 1);
    }

    /// The first row with this tag for which `is_it` returns true.
    #[inline(always)]
    pub(crate) fn find(&self, tag: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(tag);
        loop {
            let entry = self.entries[at];
            if entry == 0 {
                return None;
            }
            let row = (entry as u32).wrapping_sub(1);
            if (entry >> 32) as u32 == tag && is_it(row) {
                return Some(row);
            }
            at = self.after(at);
        }
    }

    /// Adds a row under `tag`. The caller has checked that its key is not in the index.
    pub(crate) fn insert(&mut self, tag: u32, row: u32) {
        if (self.used + 1) * 4 > self.entries.len() * 3 {
            self.grow();
        }
        self.place(u64::from(tag) << 32 | (u64::from(row) + 1));
        self.used += 1;
    }

    /// Removes the entry of `row` under `tag`. Entries after it move closer to their homes, so there are no tombstones and
    /// searches stay as short as if the row had never been there.
    pub(crate) fn remove(&mut self, tag: u32, row: u32) {
        let mut hole = self.position(tag, row);
        let mut at = hole;
        loop {
            at = self.after(at);
            let entry = self.entries[at];
            if entry == 0 {
                break;
            }
            // An entry may move back to the hole unless the hole is before its home.
            let home = self.home((entry >> 32) as u32);
            if self.distance(home, at) >= self.distance(hole, at) {
                self.entries[hole] = entry;
                hole = at;
            }
        }
        self.entries[hole] = 0;
        self.used -= 1;
    }

    /// The row `from` under `tag` has the number `to` now.
    pub(crate) fn renumber(&mut self, tag: u32, from: u32, to: u32) {
        let at = self.position(tag, from);
        self.entries[at] = u64::from(tag) << 32 | (u64::from(to) + 1);
    }

    /// Frees memory if more than half of it is not needed.
    pub(crate) fn release(&mut self) {
        let wanted = self.used + self.used / 2 + 16;
        if self.entries.len() > 2 * wanted {
            self.resize(wanted);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.len() * size_of::<u64>()
    }

    /// Bytes of an index into which this many rows were inserted one by one.
    pub(super) fn bytes_for(rows: u64) -> u64 {
        let mut entries = FIRST_ENTRIES as u64;
        while rows * 4 > entries * 3 {
            entries = grown(entries as usize) as u64;
        }
        entries * size_of::<u64>() as u64
    }

    fn grow(&mut self) {
        self.resize(grown(self.entries.len()));
    }

    fn resize(&mut self, capacity: usize) {
        let mut entries = vec![0; capacity];
        use_huge_pages(&mut entries);
        let old = std::mem::replace(&mut self.entries, entries);
        old.into_iter().filter(|entry| *entry != 0).for_each(|entry| self.place(entry));
    }

    fn place(&mut self, entry: u64) {
        let mut at = self.home((entry >> 32) as u32);
        while self.entries[at] != 0 {
            at = self.after(at);
        }
        self.entries[at] = entry;
    }

    /// The position of the entry of `row`, which must exist.
    fn position(&self, tag: u32, row: u32) -> usize {
        let wanted = u64::from(tag) << 32 | (u64::from(row) + 1);
        let mut at = self.home(tag);
        while self.entries[at] != wanted {
            assert!(self.entries[at] != 0, "every row has an entry");
            at = self.after(at);
        }
        at
    }

    /// Number of steps from one position to another, wrapping around at the end.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.entries.len() - from }
    }

    #[inline(always)]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.entries.len() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_under_its_tag_while_the_index_grows() {
        let mut index = Index::new();
        let tag = |row: u32| row.wrapping_mul(0x9e37_79b9);
        for row in 0..5_000 {
            index.insert(tag(row), row);
            assert!(index.used * 4 <= index.entries.len() * 3, "load stays at or below 0.75");
        }
        for row in 0..5_000 {
            assert_eq!(index.find(tag(row), |found| found == row), Some(row));
        }
        assert_eq!(index.find(tag(5_000), |_| true), None);
    }

    #[test]
    fn rows_that_remain_are_found_whatever_is_removed_around_them() {
        // Tags in a few clusters, some of them at the very end so that they wrap around.
        let tag = |row: u32| (row % 7) * 100_000_000 + row % 3 + if row.is_multiple_of(5) { 3_690_000_000 } else { 0 };
        let mut index = Index::new();
        (0..3_000).for_each(|row| index.insert(tag(row), row));
        for removed in (0..3_000).filter(|row| row % 4 != 1) {
            index.remove(tag(removed), removed);
        }
        index.renumber(tag(1), 1, 9_999);
        let full = index.bytes();
        for released in [false, true] {
            for row in 0..3_000 {
                let expected = (row % 4 == 1 && row != 1).then_some(row);
                assert_eq!(index.find(tag(row), |found| found == row), expected);
            }
            assert_eq!(index.find(tag(1), |found| found == 9_999), Some(9_999));
            assert_eq!(index.entries.iter().filter(|entry| **entry != 0).count(), index.used);
            if !released {
                index.release();
            }
        }
        assert!(index.bytes() < full / 2);
    }

    #[test]
    fn rows_that_share_a_tag_are_offered_one_after_another() {
        let mut index = Index::new();
        // The last home of all: the second row has to wrap around to the front.
        index.insert(u32::MAX, 7);
        index.insert(u32::MAX, 8);
        let mut offered = Vec::new();
        assert_eq!(
            index.find(u32::MAX, |row| {
                offered.push(row);
                false
            }),
            None
        );
        assert_eq!(offered, [7, 8]);
    }
}
