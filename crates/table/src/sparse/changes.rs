//! Which rows have changed since an earlier save, so that the next save can be a delta.
//!
//! Every cut has a number, and every row the number of the cut it last changed under: two bytes per row, from the first cut on.
//! Numbers only increase, so a failed save loses nothing. Keys whose rows were removed are listed until no known save is older
//! than their removal.

use std::collections::VecDeque;

use openfleet_core::Key;

/// The saves that a table knows, and the number of its next cut.
#[derive(Debug, Default)]
pub(super) struct Saves {
    next: u16,
    /// Id of each save with the number of its cut, oldest first.
    known: VecDeque<(String, u16)>,
}

/// Number of known saves: one day with two saves per hour.
const KNOWN: usize = 48;

impl Saves {
    /// The number of a save, if it is known and will still be known after the next cut.
    pub(super) fn number_of(&self, save: &str) -> Option<u16> {
        let known = self.known.iter().rev().find(|(name, _)| name == save && !self.restarts());
        known.map(|(_, number)| *number)
    }

    /// Begins a new cut.
    pub(super) fn close(&mut self) -> NewCut {
        let restarts = self.restarts();
        if restarts {
            *self = Saves::default();
        }
        let number = self.next;
        self.next += 1;
        NewCut { number, oldest: self.known.front().map_or(number, |(_, number)| *number), restarts }
    }

    /// Numbers are used up after 65,535 cuts: then nothing is known about earlier ones.
    fn restarts(&self) -> bool {
        self.next == u16::MAX
    }

    /// A cut was saved.
    pub(super) fn remember(&mut self, save: &str, number: u16) {
        self.known.retain(|(name, _)| name != save);
        self.known.push_back((save.to_owned(), number));
        if self.known.len() > KNOWN {
            self.known.pop_front();
        }
    }
}

/// A cut that is being made.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewCut {
    /// Rows that change from now on get a greater number.
    pub(super) number: u16,
    /// Number of the oldest known save.
    oldest: u16,
    /// Whether the numbers start from 0 again.
    restarts: bool,
}

/// What has changed in the rows of a shard.
#[derive(Debug)]
pub(super) struct Changes {
    /// The number for rows that change now.
    number: u16,
    /// Number per row.
    of_row: Vec<u16>,
    /// Keys whose rows were removed, and the number at that time.
    removed: Vec<(Key, u16)>,
    /// Removals up to this number have been forgotten.
    forgotten: u16,
}

/// Removals that are always listed, whatever the number of rows.
const REMOVALS: usize = 1 << 16;

impl Changes {
    /// No changes; called at the first cut.
    fn new(rows: u32) -> Self {
        Changes { number: 0, of_row: vec![0; rows as usize], removed: Vec::new(), forgotten: 0 }
    }

    /// Begins a cut of a shard with this many rows.
    pub(super) fn cut(changes: &mut Option<Box<Self>>, rows: u32, new_cut: NewCut) {
        if new_cut.restarts {
            *changes = None;
        }
        let changes = changes.get_or_insert_with(|| Box::new(Changes::new(rows)));
        changes.number = new_cut.number + 1;
        changes.removed.retain(|(_, number)| *number > new_cut.oldest);
    }

    #[inline(always)]
    pub(super) fn changed(&mut self, row: u32) {
        self.of_row[row as usize] = self.number;
    }

    pub(super) fn created(&mut self) {
        self.of_row.push(self.number);
    }

    /// The last row gets the removed row's number.
    pub(super) fn removed(&mut self, row: u32, key: Key) {
        self.of_row.swap_remove(row as usize);
        self.removed.push((key, self.number));
        if self.removed.len() > REMOVALS.max(2 * self.of_row.len()) {
            self.removed = Vec::new();
            self.forgotten = self.number;
        }
    }

    /// Whether all changes since a cut are known.
    pub(super) fn knows(&self, since: u16) -> bool {
        since >= self.forgotten
    }

    /// Whether a row has changed since a cut.
    pub(super) fn is_newer(&self, row: u32, since: u16) -> bool {
        self.of_row[row as usize] > since
    }

    /// Keys whose rows were removed since a cut; some may have a new row.
    pub(super) fn removed_since(&self, since: u16) -> impl Iterator<Item = Key> {
        self.removed.iter().filter(move |(_, number)| *number > since).map(|(key, _)| *key)
    }

    pub(super) fn bytes(&self) -> usize {
        self.of_row.capacity() * size_of::<u16>() + self.removed.capacity() * size_of::<(Key, u16)>()
    }

    /// Frees memory that is not needed now.
    pub(super) fn release(&mut self) {
        self.of_row.shrink_to_fit();
        self.removed.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_come_to_an_end_begin_again_and_no_save_is_known_then() {
        let mut saves = Saves::default();
        let mut changes = None;
        for _ in 0..u16::MAX {
            let new_cut = saves.close();
            Changes::cut(&mut changes, 1, new_cut);
            saves.remember("a save", new_cut.number);
        }
        assert_eq!((saves.number_of("a save"), changes.as_ref().unwrap().number), (None, u16::MAX));
        let new_cut = saves.close();
        Changes::cut(&mut changes, 1, new_cut);
        assert_eq!((new_cut.number, saves.number_of("a save")), (0, None));
        changes.as_mut().unwrap().changed(0);
        assert!(changes.unwrap().is_newer(0, 0));
    }

    #[test]
    fn the_oldest_saves_are_forgotten_and_so_are_removals_before_all_of_them() {
        let mut saves = Saves::default();
        let mut changes = None;
        for save in 0..KNOWN + 2 {
            let new_cut = saves.close();
            Changes::cut(&mut changes, 0, new_cut);
            saves.remember(&save.to_string(), new_cut.number);
            let changes = changes.as_mut().unwrap();
            changes.created();
            changes.removed(0, save as Key);
        }
        assert_eq!((saves.number_of("1"), saves.number_of("2")), (None, Some(2)));
        Changes::cut(&mut changes, 0, saves.close());
        let changes = changes.unwrap();
        assert_eq!(changes.removed.first(), Some(&(2, 3)));
        assert_eq!(changes.removed_since(48).collect::<Vec<_>>(), [48, 49]);
    }

    #[test]
    fn too_many_removals_are_forgotten_together() {
        let mut saves = Saves::default();
        let mut changes = None;
        Changes::cut(&mut changes, 0, saves.close());
        let changes = changes.as_mut().unwrap();
        for key in 0..=REMOVALS as Key {
            changes.created();
            changes.removed(0, key);
        }
        assert!(!changes.knows(0) && changes.knows(1) && changes.removed.is_empty());
    }
}
