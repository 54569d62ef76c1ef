//! GEO on the server: workers train on copies, and here stands what each of them has yet to hear of.

use openfleet_core::WorkId;
use openfleet_table::geo::Changed;
use openfleet_table::ledger::{Applied, Ledger};
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Per sparse table, the rows that each worker has yet to hear of.
pub(crate) struct Copies {
    tables: Vec<Mutex<Changed>>,
    /// The pulls of each worker that made the server forget what that worker knows by now.
    pulls: Mutex<Ledger>,
}

impl Copies {
    /// Of so many tables; every worker takes part.
    pub(super) fn new(tables: usize, workers: u32) -> Self {
        let changed = || {
            let mut changed = Changed::new();
            (0..workers).for_each(|worker| changed.join(worker));
            Mutex::new(changed)
        };
        Copies { tables: (0..tables).map(|_| changed()).collect(), pulls: Mutex::default() }
    }

    /// Of one table.
    pub(crate) fn changed(&self, table: u32) -> Result<&Mutex<Changed>> {
        self.tables.get(table as usize).ok_or(Error::UnknownTable { table, count: self.tables.len() })
    }

    /// Whether this pull of a worker is new: neither a repeat, nor the original of a repeat that came before it.
    pub(crate) fn is_first(&self, worker: u32, number: u64) -> bool {
        self.pulls.lock().apply_once(WorkId::step(worker, number), || ()) == Applied::Now(())
    }

    /// A worker takes part no more.
    pub(super) fn leave(&self, worker: u32) {
        self.tables.iter().for_each(|changed| changed.lock().leave(worker));
    }
}
