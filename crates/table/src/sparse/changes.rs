//! Which rows have changed since an earlier save, so that the next one need not write all of them.
//!
//! Every cut has a number, and a row remembers the last number under which it was changed: two bytes a row, from the first
//! cut on. Numbers only grow, so a save that comes to nothing loses nothing. Keys whose rows were removed are listed
//! until no known save is older than their removal.

use std::collections::VecDeque;

use openfleet_core::Key;

/// The saves that a table knows, and the number of its next cut.
#[derive(Debug, Default)]
pub(super) struct Saves {
    next: u16,
    /// By name, with the number of its cut, oldest first.
    known: VecDeque<(String, u16)>,
}

/// Saves that are known: a day's worth, if each hour has two.
const KNOWN: usize = 48;

impl Saves {
    /// The number of a save, if it is known, and will be after the next cut.
    pub(super) fn number_of(&self, save: &str) -> Option<u16> {
        let known = self.known.iter().rev().find(|(name, _)| name == save && !self.restarts());
        known.map(|(_, number)| *number)
    }

    /// The number of the cut that is made now.
    pub(super) fn close(&mut self) -> Moment {
        let restarts = self.restarts();
        if restarts {
            *self = Saves::default();
        }
        let number = self.next;
        self.next += 1;
        Moment { number, oldest: self.known.front().map_or(number, |(_, number)| *number), restarts }
    }

    /// Numbers come to an end once in 65,535 cuts: then nothing is known of earlier ones.
    fn restarts(&self) -> bool {
        self.next == u16::MAX
    }

    /// A cut has become a save.
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
pub(super) struct Moment {
    /// Rows that change from now on get a greater one.
    pub(super) number: u16,
    /// That of the oldest save that is known.
    oldest: u16,
    /// Whether the numbers begin again.
    restarts: bool,
}

/// What has happened to the rows of a shard.
#[derive(Debug)]
pub(super) struct Changes {
    /// What rows get that change now.
    number: u16,
    /// By row.
    of_row: Vec<u16>,
    /// Keys that have lost their rows, with the number of that time.
    removed: Vec<(Key, u16)>,
    /// Removals up to this number are not known any more.
    forgotten: u16,
}

/// Removals that are listed whatever the number of rows.
const REMOVALS: usize = 1 << 16;

impl Changes {
    /// From the first cut on.
    fn new(rows: u32) -> Self {
        Changes { number: 0, of_row: vec![0; rows as usize], removed: Vec::new(), forgotten: 0 }
    }

    /// A cut is made of a shard with so many rows.
    pub(super) fn cut(changes: &mut Option<Box<Self>>, rows: u32, moment: Moment) {
        if moment.restarts {
            *changes = None;
        }
        let changes = changes.get_or_insert_with(|| Box::new(Changes::new(rows)));
        changes.number = moment.number + 1;
        changes.removed.retain(|(_, number)| *number > moment.oldest);
    }

    #[inline(always)]
    pub(super) fn changed(&mut self, row: u32) {
        self.of_row[row as usize] = self.number;
    }

    pub(super) fn created(&mut self) {
        self.of_row.push(self.number);
    }

    /// The last row takes the removed one's number.
    pub(super) fn removed(&mut self, row: u32, key: Key) {
        self.of_row.swap_remove(row as usize);
        self.removed.push((key, self.number));
        if self.removed.len() > REMOVALS.max(2 * self.of_row.len()) {
            self.removed = Vec::new();
            self.forgotten = self.number;
        }
    }

    /// Whether it is known what has changed since a cut.
    pub(super) fn knows(&self, since: u16) -> bool {
        since >= self.forgotten
    }

    /// Whether a row has changed since a cut.
    pub(super) fn is_newer(&self, row: u32, since: u16) -> bool {
        self.of_row[row as usize] > since
    }

    /// Keys that have lost a row since a cut; some may have a new one.
    pub(super) fn removed_since(&self, since: u16) -> impl Iterator<Item = Key> {
        self.removed.iter().filter(move |(_, number)| *number > since).map(|(key, _)| *key)
    }

    pub(super) fn bytes(&self) -> usize {
        self.of_row.capacity() * size_of::<u16>() + self.removed.capacity() * size_of::<(Key, u16)>()
    }

    /// Gives back what is not needed now.
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
            let moment = saves.close();
            Changes::cut(&mut changes, 1, moment);
            saves.remember("a save", moment.number);
        }
        assert_eq!((saves.number_of("a save"), changes.as_ref().unwrap().number), (None, u16::MAX));
        let moment = saves.close();
        Changes::cut(&mut changes, 1, moment);
        assert_eq!((moment.number, saves.number_of("a save")), (0, None));
        changes.as_mut().unwrap().changed(0);
        assert!(changes.unwrap().is_newer(0, 0));
    }

    #[test]
    fn the_oldest_saves_are_forgotten_and_so_are_removals_before_all_of_them() {
        let mut saves = Saves::default();
        let mut changes = None;
        for save in 0..KNOWN + 2 {
            let moment = saves.close();
            Changes::cut(&mut changes, 0, moment);
            saves.remember(&save.to_string(), moment.number);
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
