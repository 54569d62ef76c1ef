//! GEO on the server: workers train on copies, and the server tracks which changes each of them has not seen yet.

use std::collections::BTreeSet;

use openfleet_core::WorkId;
use openfleet_table::Missing;
use openfleet_table::geo::Changed;
use openfleet_table::ledger::{Applied, Ledger};
use parking_lot::Mutex;

use super::tables::{CopyOwner, GatePermit, Tables};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::gradients::{PushView, PushedStage};

/// What the server tracks per worker in geo mode.
pub(crate) struct GeoState {
    tables: Vec<Mutex<Changed>>,
    /// Numbers of each worker's pulls that made the server forget changes, because the pull itself contained them.
    pulls: Mutex<Ledger>,
    /// Workers that have sent a part of their progress. The rest is lost if they die.
    incomplete: Mutex<BTreeSet<u32>>,
    /// Workers that may have trained since they last sent everything.
    training: Mutex<BTreeSet<u32>>,
    wanted: Mutex<WantedFlush>,
}

/// A save that waits for unsent progress, and the workers it still waits for.
#[derive(Default)]
struct WantedFlush {
    ticket: u64,
    workers: BTreeSet<u32>,
}

impl GeoState {
    /// For `tables` sparse tables; every worker takes part.
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

    /// A worker has pulled rows for training.
    pub(crate) fn trains(&self, worker: u32) {
        self.training.lock().insert(worker);
    }

    /// The workers with unsent progress that the request with this ticket still waits for. A new ticket asks all of them to
    /// flush.
    pub(super) fn request_flush(&self, asker: u32, ticket: u64) -> Vec<u32> {
        let mut wanted = self.wanted.lock();
        if wanted.ticket != ticket {
            let others = self.training.lock().iter().copied().filter(|&worker| worker != asker).collect();
            *wanted = WantedFlush { ticket, workers: others };
        }
        wanted.workers.iter().copied().collect()
    }

    /// The ticket of the save that waits for this worker, or 0.
    pub(super) fn wanted_of(&self, worker: u32) -> u64 {
        let wanted = self.wanted.lock();
        if wanted.workers.contains(&worker) { wanted.ticket } else { 0 }
    }

    /// A worker has sent the progress that was requested.
    pub(super) fn flush_done(&self, worker: u32, ticket: u64) {
        let mut wanted = self.wanted.lock();
        if wanted.ticket == ticket {
            wanted.workers.remove(&worker);
        }
    }

    /// The worker has no unsent progress: no save waits for it.
    fn has_nothing_unsent(&self, worker: u32) {
        self.training.lock().remove(&worker);
        self.wanted.lock().workers.remove(&worker);
    }

    /// The unseen changes of one table, per worker.
    pub(crate) fn changed(&self, table: u32) -> Result<&Mutex<Changed>> {
        self.tables.get(table as usize).ok_or(Error::UnknownTable { table, count: self.tables.len() })
    }

    /// Whether this pull of a worker is new: neither a repeat, nor an original that its repeat has overtaken.
    pub(crate) fn is_first(&self, worker: u32, number: u64) -> bool {
        self.pulls.lock().apply_once(WorkId::step(worker, number), || ()) == Applied::Now(())
    }

    /// Records whether the tables contain all progress of a worker up to its last exchange.
    pub(super) fn set_complete(&self, worker: u32, complete: bool) {
        if complete {
            self.incomplete.lock().remove(&worker);
            self.has_nothing_unsent(worker);
        } else {
            self.incomplete.lock().insert(worker);
            self.trains(worker);
        }
    }

    /// Whether progress would be lost if this worker died.
    pub(super) fn is_incomplete(&self, worker: u32) -> bool {
        self.incomplete.lock().contains(&worker)
    }

    /// Whether the tables contain all progress of every worker up to its last exchange.
    pub(super) fn are_complete(&self) -> bool {
        self.incomplete.lock().is_empty()
    }

    /// A worker restarts without copies.
    pub(super) fn forget(&self, worker: u32) {
        for changed in &self.tables {
            changed.lock().take_changed(worker);
        }
        self.has_nothing_unsent(worker);
    }

    /// A worker departs.
    pub(super) fn leave(&self, worker: u32) {
        self.tables.iter().for_each(|changed| changed.lock().leave(worker));
        self.set_complete(worker, true);
    }
}

impl Tables {
    /// GEO: adds a worker's differences and returns what others have changed. Idempotent.
    pub(crate) fn exchange(&self, _permit: &GatePermit<'_>, worker: u32, view: &PushView<'_>) -> Result<Payload> {
        let Some(geo) = self.geo() else { return Err(Error::UnknownTable { table: 0, count: 0 }) };
        let stream = self.stream(view.work.stream);
        let mut stream = stream.lock();
        if let Some((step, answer)) = &stream.last_answer
            && *step == view.work.first_step
        {
            self.repeated();
            return Ok(answer.clone());
        }
        let applied = stream.ledger.try_apply_once(view.work, || self.add_differences(&geo, worker, view))?;
        match applied {
            Applied::Now(answer) => {
                geo.set_complete(worker, false);
                stream.last_answer = Some((view.work.first_step, answer.clone()));
                Ok(answer)
            }
            Applied::Before | Applied::Part => {
                Err(Error::Overlap { stream: view.work.stream, first: view.work.first_step, last: view.work.last_step })
            }
        }
    }

    fn add_differences(&self, geo: &GeoState, worker: u32, view: &PushView<'_>) -> Result<Payload> {
        let mut scratch = self.scratch();
        for PushedStage { keys, gradients: differences, .. } in &view.stages {
            for ((&number, &dim), differences) in keys.tables.iter().zip(keys.dims).zip(differences) {
                let table = self.sparse(number)?;
                table.check_dim(dim)?;
                table.table.add(keys.keys, differences, &mut scratch).map_err(|e| table.error("adding to", e))?;
                geo.changed(number)?.lock().record(worker, keys.keys);
            }
        }
        for (number, difference) in &view.blocks {
            let block = self.dense(*number)?;
            block.table.add(difference).map_err(|e| block.error("adding to", e))?;
        }
        let mut answer = self.reply();
        answer.put(&[geo.wanted_of(worker)]);
        let count = self.current.read().sparse.len() as u32;
        for number in 0..count {
            let table = self.sparse(number)?;
            let mut keys = geo.changed(number)?.lock().take_changed(worker);
            // Other workers may have changed rows that this exchange sent; these rows are in the set.
            keys.sort_unstable();
            answer.put(&[keys.len() as u64]);
            answer.put(&keys);
            let rows = answer.append::<f32>(keys.len() * table.table.dim());
            table
                .table
                .pull(&keys, Missing::Initial, rows, &mut scratch)
                .map_err(|e| table.error("pulling from", e))?;
        }
        self.put_scratch(scratch);
        match view.changes_since {
            Some(held) => answer.put(self.all_changes(CopyOwner::Worker(worker), held)?.bytes()),
            None => self.put_values(view.blocks.iter().map(|&(block, _)| block), &mut answer)?,
        }
        Ok(answer)
    }

    /// GEO: the tables contain all progress of a worker up to these steps of its streams.
    pub(crate) fn geo_flushed(&self, _permit: &GatePermit<'_>, worker: u32, positions: &[(u32, u64)]) {
        for &(stream, position) in positions.iter().filter(|(_, position)| *position > 0) {
            let known = self.stream(stream);
            let mut known = known.lock();
            let first_step = known.ledger.position(stream);
            if first_step < position {
                let work = WorkId { stream, first_step, last_step: position - 1 };
                let _ = known.ledger.apply_once(work, || ());
            }
        }
        if let Some(geo) = self.geo() {
            geo.set_complete(worker, true);
        }
    }

    /// GEO: a worker restarts with empty copies, and numbers its exchanges from zero again.
    pub(crate) fn forget_exchanges(&self, worker: u32, stream: u32) {
        self.streams.lock().remove(&stream);
        if let Some(geo) = self.geo() {
            geo.forget(worker);
        }
    }
}
