//! A table as a copy of rows that another process owns: what has changed here is taken as differences, and what has changed there is
//! received.
//!
//! ```text
//! differences(K):  d = (row - base) / divisor;  base += d          sent to the owner, which adds d to its row
//! receive(K, R):   row += R - base;  base = R                      a row without a base becomes R
//! ```

use openfleet_core::Key;

use super::{
    Accessor, Error, Plain, PlainBfloat16, Result, RowStorage, Scratch, SparseTable, same_length, with_layout,
};
use crate::sparse::bases::Bases;

/// The differences of some rows from what their owner has.
#[derive(Debug, Default, PartialEq)]
pub struct Differences {
    /// Keys of rows with a difference, each once.
    pub keys: Vec<Key>,
    /// One row per key.
    pub values: Vec<f32>,
}

impl SparseTable {
    /// Makes the table a copy: it remembers what rows were before they were pushed, and lists rows as often used after `often`
    /// pushes.
    pub fn as_copy(mut self, often: u32) -> Self {
        for shard in &mut self.shards {
            shard.get_mut().keep_bases(Bases::new(self.spec.dim, often));
        }
        self
    }

    /// Takes the keys of the rows that were pushed often since they were last taken, ascending, each once.
    pub fn take_often_used(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        self.bases(|bases, _| bases.take_often_used(&mut keys));
        sorted(keys)
    }

    /// Takes the keys of all rows that were pushed since they were last taken, ascending, each once.
    pub fn take_used(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        self.bases(|bases, key_of| {
            bases.take_often_used(&mut keys);
            bases.take_used(|row| keys.push(key_of(row)));
        });
        sorted(keys)
    }

    /// The keys of all rows whose difference has not been taken as a whole, ascending.
    pub fn changed_keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        self.bases(|bases, key_of| keys.extend(bases.changed().map(key_of)));
        sorted(keys)
    }

    /// Takes the differences of these distinct keys from their owner's rows, divided by `divisor`, in any order. They are added to the
    /// base, as the owner will add them to its rows. Rows without a difference, or with one that is not finite, are left out. With a
    /// divisor of 1 the rows are as the owner has them afterwards, to the bit.
    pub fn differences(&self, keys: &[Key], divisor: f32, scratch: &mut Scratch) -> Result<Differences> {
        scratch.group(keys, self.shards.len())?;
        let (new_row, mut differences) = (self.new_row(), Differences::default());
        with_layout!(self.spec, layout => {
            self.visit(scratch, |shard, group| shard.differences(layout, group, divisor, &new_row, &mut differences));
        });
        Ok(differences)
    }

    /// Receives rows from their owner: adds their differences from the base. Keys without a row are ignored.
    ///
    /// # Errors
    ///
    /// If the lengths do not agree, or the table stores weights in 16 bits: then sums would be rounded.
    pub fn receive(&self, keys: &[Key], rows: &[f32], scratch: &mut Scratch) -> Result<()> {
        same_length("rows", keys.len().saturating_mul(self.spec.dim), rows.len())?;
        if !self.spec.storage.is_float32() {
            return Err(Error::NarrowSum { storage: self.spec.storage.name() });
        }
        scratch.group(keys, self.shards.len())?;
        let new_row = self.new_row();
        match &self.spec.accessor {
            Accessor::Plain => self.visit(scratch, |shard, group| shard.receive(&Plain, group, &new_row, rows)),
            Accessor::Ctr(layout) => self.visit(scratch, |shard, group| shard.receive(layout, group, &new_row, rows)),
        }
        Ok(())
    }

    /// Calls `work` with the bases of each shard, and a function from the number of a row to its key.
    fn bases(&self, mut work: impl FnMut(&mut Bases, &dyn Fn(u32) -> Key)) {
        for shard in &self.shards {
            shard.lock().with_bases(&mut work);
        }
    }
}

fn sorted(mut keys: Vec<Key>) -> Vec<Key> {
    keys.sort_unstable();
    keys.dedup();
    keys
}
