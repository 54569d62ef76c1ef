//! GEO on the server: workers train on copies, and here stands what each of them has yet to hear of.

use std::collections::BTreeSet;

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
    /// Workers that have sent a part of what they have learnt and kept the rest: it is lost if they die.
    incomplete: Mutex<BTreeSet<u32>>,
}

impl Copies {
    /// Of so many tables; every worker takes part.
    pub(super) fn new(tables: usize, workers: u32) -> Self {
        let changed = || {
            let mut changed = Changed::new();
            (0..workers).for_each(|worker| changed.join(worker));
            Mutex::new(changed)
        };
        Copies {
            tables: (0..tables).map(|_| changed()).collect(),
            pulls: Mutex::default(),
            incomplete: Mutex::default(),
        }
    }

    /// Of one table.
    pub(crate) fn changed(&self, table: u32) -> Result<&Mutex<Changed>> {
        self.tables.get(table as usize).ok_or(Error::UnknownTable { table, count: self.tables.len() })
    }

    /// Whether this pull of a worker is new: neither a repeat, nor the original of a repeat that came before it.
    pub(crate) fn is_first(&self, worker: u32, number: u64) -> bool {
        self.pulls.lock().apply_once(WorkId::step(worker, number), || ()) == Applied::Now(())
    }

    /// Notes whether the tables have all that a worker has learnt up to its last exchange.
    pub(super) fn set_complete(&self, worker: u32, complete: bool) {
        let mut incomplete = self.incomplete.lock();
        if complete {
            incomplete.remove(&worker);
        } else {
            incomplete.insert(worker);
        }
    }

    /// Whether a worker would take with it, if it died, what no server has.
    pub(super) fn is_incomplete(&self, worker: u32) -> bool {
        self.incomplete.lock().contains(&worker)
    }

    /// Whether the tables have all that every worker has learnt up to its last exchange.
    pub(super) fn are_complete(&self) -> bool {
        self.incomplete.lock().is_empty()
    }

    /// A worker starts again without copies.
    pub(super) fn forget(&self, worker: u32) {
        for changed in &self.tables {
            changed.lock().take_changed(worker);
        }
    }

    /// A worker takes part no more.
    pub(super) fn leave(&self, worker: u32) {
        self.tables.iter().for_each(|changed| changed.lock().leave(worker));
        self.set_complete(worker, true);
    }
}
