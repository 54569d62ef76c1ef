//! GEO on the server: workers train on copies, and here stands what each of them has yet to hear of.

use std::collections::BTreeSet;

use openfleet_core::WorkId;
use openfleet_table::geo::Changed;
use openfleet_table::ledger::{Applied, Ledger};
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Per sparse table, the rows that each worker has yet to hear of.
pub(crate) struct GeoState {
    tables: Vec<Mutex<Changed>>,
    /// The pulls of each worker that made the server forget what that worker knows by now.
    pulls: Mutex<Ledger>,
    /// Workers that have sent a part of what they have learnt and kept the rest: it is lost if they die.
    incomplete: Mutex<BTreeSet<u32>>,
    /// Workers that may have learnt something since they last handed everything in.
    training: Mutex<BTreeSet<u32>>,
    wanted: Mutex<WantedFlush>,
}

/// Somebody waits for all that workers have learnt, and for whom still.
#[derive(Default)]
struct WantedFlush {
    ticket: u64,
    workers: BTreeSet<u32>,
}

impl GeoState {
    /// Of so many tables; every worker takes part.
    pub(super) fn new(tables: usize, workers: u32) -> Self {
        let changed = || {
            let mut changed = Changed::new();
            (0..workers).for_each(|worker| changed.join(worker));
            Mutex::new(changed)
        };
        GeoState {
            tables: (0..tables).map(|_| changed()).collect(),
            pulls: Mutex::default(),
            incomplete: Mutex::default(),
            training: Mutex::default(),
            wanted: Mutex::default(),
        }
    }

    /// A worker has pulled rows to train them.
    pub(crate) fn trains(&self, worker: u32) {
        self.training.lock().insert(worker);
    }

    /// The workers that have yet to send what they have learnt, for whoever asks with this ticket. A new ticket asks all of them.
    pub(super) fn request_flush(&self, asker: u32, ticket: u64) -> Vec<u32> {
        let mut wanted = self.wanted.lock();
        if wanted.ticket != ticket {
            let others = self.training.lock().iter().copied().filter(|&worker| worker != asker).collect();
            *wanted = WantedFlush { ticket, workers: others };
        }
        wanted.workers.iter().copied().collect()
    }

    /// The ticket of whoever waits for a worker, or 0.
    pub(super) fn wanted_of(&self, worker: u32) -> u64 {
        let wanted = self.wanted.lock();
        if wanted.workers.contains(&worker) { wanted.ticket } else { 0 }
    }

    /// A worker has sent what it was asked for.
    pub(super) fn flush_done(&self, worker: u32, ticket: u64) {
        let mut wanted = self.wanted.lock();
        if wanted.ticket == ticket {
            wanted.workers.remove(&worker);
        }
    }

    /// Nobody need wait for a worker.
    fn has_nothing_unsent(&self, worker: u32) {
        self.training.lock().remove(&worker);
        self.wanted.lock().workers.remove(&worker);
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
        if complete {
            self.incomplete.lock().remove(&worker);
            self.has_nothing_unsent(worker);
        } else {
            self.incomplete.lock().insert(worker);
            self.trains(worker);
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
        self.has_nothing_unsent(worker);
    }

    /// A worker takes part no more.
    pub(super) fn leave(&self, worker: u32) {
        self.tables.iter().for_each(|changed| changed.lock().leave(worker));
        self.set_complete(worker, true);
    }
}
