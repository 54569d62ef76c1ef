//! The gate that brings all servers to one consistent snapshot, and who may open it.
//!
//! ```text
//!          prepare                      cut: all of the target is applied
//! open ------------> closed, no target ----------------------------------> snapshot taken, open again
//!   ^                     |    cut: some of it is in flight                    |
//!   |                     +------> closed, with a target ----------------------+
//!   +--- release, the owner's death, or no request for a while ---------+
//! ```
//!
//! While the gate is closed, pushes of streams outside of groups are held back, except those that the target contains. Streams
//! that step together may push, but their steps beyond the target are not applied. Pulls continue. The gate and the snapshot
//! belong to one incarnation of one worker: when it dies, or a newer incarnation connects, both are released.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use openfleet_core::WorkId;
use openfleet_core::topology::Incarnation;
use openfleet_table::checkpoint::Work;
use openfleet_table::ledger::Covered;
use serde::{Deserialize, Serialize};

use super::{Effect, Ticket};
use crate::error::{Error, Result};

/// The worker that saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Rank of the worker.
    pub(crate) rank: u32,
    /// Incarnation of the worker; `None` for a worker in this process.
    pub(crate) incarnation: Option<Incarnation>,
}

/// The reply to a worker that saves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CutAnswer {
    /// Pushes are held back, and this has been applied.
    Prepared(Work),
    /// The server is busy with something that excludes a snapshot; retry.
    Busy(String),
    /// The snapshot is taken, or there is nothing left to do.
    Done,
    /// Some pushes of the target are still in flight; retry.
    NotYet(Work),
}

/// The state of the gate.
#[derive(Default)]
pub(super) struct Snapshot {
    closed: Option<Closed>,
    held: Vec<(Ticket, WorkId)>,
    /// Id and owner of a snapshot that was taken and is not written yet.
    marked: Option<(String, Owner)>,
    /// Ids of completed and aborted attempts: late requests of them are stale and must not close the gate again.
    over: VecDeque<String>,
}

struct Closed {
    id: String,
    owner: Owner,
    target: Option<Work>,
    /// When the gate opens by itself.
    opens: Instant,
}

/// Number of attempts that are remembered.
const KEPT_ATTEMPTS: usize = 256;

/// How long the gate stays closed without a request from its owner.
pub(super) const CLOSED_AT_MOST: Duration = Duration::from_secs(3);

impl Snapshot {
    /// Whether some work is held back.
    pub(super) fn holds_back(&self, work: WorkId) -> bool {
        self.closed.as_ref().is_some_and(|closed| !closed.lets_through(work))
    }

    /// Holds a push back until the gate opens.
    pub(super) fn hold(&mut self, ticket: Ticket, work: WorkId) {
        self.held.push((ticket, work));
    }

    /// The owner of a snapshot that is not written yet.
    pub(super) fn marked_by(&self) -> Option<Owner> {
        self.marked.as_ref().map(|(_, owner)| *owner)
    }

    /// Closes the gate, or returns why that is not possible now.
    pub(super) fn prepare(&mut self, id: &str, owner: Owner, now: Instant) -> Result<Option<&'static str>> {
        if self.over.iter().any(|over| over == id) {
            return Err(Error::CutOver);
        }
        if self.marked.as_ref().is_some_and(|(marked, _)| marked != id) {
            return Ok(Some("another checkpoint is being written"));
        }
        if self.closed.as_ref().is_some_and(|closed| closed.id != id) {
            return Ok(Some("another checkpoint is being prepared"));
        }
        self.closed = Some(Closed { id: id.to_owned(), owner, target: None, opens: now + CLOSED_AT_MOST });
        Ok(None)
    }

    /// Sets what all servers have to apply. Pushes of it that were held back are retried.
    pub(super) fn aim(&mut self, id: &str, target: &Work, now: Instant, effects: &mut Vec<Effect>) -> Result<()> {
        let closed = self.closed.as_mut().filter(|closed| closed.id == id).ok_or(Error::CutOver)?;
        closed.target = Some(target.clone());
        closed.opens = now + CLOSED_AT_MOST;
        let is_wanted = |(_, work): &mut (Ticket, WorkId)| target.streams.is_applied(*work) == Covered::All;
        effects.extend(self.held.extract_if(.., is_wanted).map(|(ticket, _)| Effect::Retry(ticket)));
        Ok(())
    }

    pub(super) fn is_marked(&self, id: &str) -> bool {
        self.marked.as_ref().is_some_and(|(marked, _)| marked == id)
    }

    /// The snapshot was taken: pushes continue.
    pub(super) fn mark(&mut self, id: &str, effects: &mut Vec<Effect>) {
        if let Some(closed) = self.closed.take() {
            self.marked = Some((id.to_owned(), closed.owner));
        }
        self.end(id);
        self.open(effects);
    }

    /// The snapshot is being written: from here on it belongs to the writer.
    pub(super) fn written(&mut self, id: &str) {
        self.marked.take_if(|(marked, _)| marked == id);
    }

    /// Aborts a save: pushes continue, and the snapshot is discarded. Returns whether the gate was closed for it.
    pub(super) fn release(&mut self, id: &str, effects: &mut Vec<Effect>) -> bool {
        // Record it first, so that a prepare that arrives later is stale.
        self.end(id);
        if self.marked.take_if(|(marked, _)| marked == id).is_some() {
            effects.push(Effect::ForgetCut(id.to_owned()));
        }
        let was_closed = self.closed.take_if(|closed| closed.id == id).is_some();
        if was_closed {
            self.open(effects);
        }
        was_closed
    }

    /// Aborts the saves of owners that are gone, or of older incarnations. Returns whether the gate was closed for one.
    pub(super) fn give_up(&mut self, is_gone: impl Fn(Owner) -> bool, effects: &mut Vec<Effect>) -> bool {
        let marked = self.marked.as_ref().filter(|(_, owner)| is_gone(*owner)).map(|(id, _)| id.clone());
        let closed = self.closed.as_ref().filter(|closed| is_gone(closed.owner)).map(|closed| closed.id.clone());
        let mut was_closed = false;
        for id in marked.into_iter().chain(closed) {
            was_closed |= self.release(&id, effects);
        }
        was_closed
    }

    /// Opens the gate if its owner did not continue in time; returns whether it did.
    pub(super) fn tick(&mut self, now: Instant, effects: &mut Vec<Effect>) -> bool {
        let late = self.closed.take_if(|closed| now >= closed.opens);
        if late.is_some() {
            self.open(effects);
        }
        late.is_some()
    }

    /// What the gate lets through while it is closed.
    pub(super) fn target(&self) -> Option<Option<Work>> {
        self.closed.as_ref().map(|closed| closed.target.clone())
    }

    fn open(&mut self, effects: &mut Vec<Effect>) {
        effects.extend(std::mem::take(&mut self.held).into_iter().map(|(ticket, _)| Effect::Retry(ticket)));
    }

    fn end(&mut self, id: &str) {
        self.over.push_back(id.to_owned());
        if self.over.len() > KEPT_ATTEMPTS {
            self.over.pop_front();
        }
    }
}

impl Closed {
    fn lets_through(&self, work: WorkId) -> bool {
        self.target.as_ref().is_some_and(|target| target.streams.is_applied(work) == Covered::All)
    }
}
