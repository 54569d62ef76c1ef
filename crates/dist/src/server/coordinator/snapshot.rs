//! The gate that brings all servers to one moment, and who may open it.
//!
//! ```text
//!          prepare                      cut: all of the target is applied
//! open ------------> closed, no target ----------------------------------> marked, open again
//!   ^                     |    cut: some of it is on its way                   |
//!   |                     +------> closed, with a target ----------------------+
//!   +--- release, the owner's death, or nobody continues for a while ---+
//! ```
//!
//! While the gate is closed, pushes of streams that nobody waits for are held back, but for those of the target; streams
//! that step together may push, and only their steps beyond the target are not applied. Pulls go on. The gate and the
//! marked moment belong to one incarnation of one worker: when it dies, or a newer one comes, both are given up.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use openfleet_core::WorkId;
use openfleet_core::topology::Incarnation;
use openfleet_table::checkpoint::Work;
use openfleet_table::ledger::Covered;
use serde::{Deserialize, Serialize};

use super::{Effect, Ticket};
use crate::error::{Error, Result};

/// Who saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The worker.
    pub(crate) rank: u32,
    /// Which process of it; none for a worker inside this process.
    pub(crate) incarnation: Option<Incarnation>,
}

/// What a worker that saves is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CutAnswer {
    /// Pushes are held back, and this has been applied.
    Prepared(Work),
    /// Something else is going on that must not be cut through; ask again.
    Busy(String),
    /// The moment is marked, or nothing is left to do.
    Done,
    /// Some of it is still on its way; ask again.
    NotYet(Work),
}

/// The state of the gate.
#[derive(Default)]
pub(super) struct Snapshot {
    closed: Option<Closed>,
    held: Vec<(Ticket, WorkId)>,
    /// The moment that was marked and is not written yet.
    marked: Option<(String, Owner)>,
    /// Attempts that were made or given up: what still comes of them is late, and must not close the gate again.
    over: VecDeque<String>,
}

struct Closed {
    id: String,
    owner: Owner,
    target: Option<Work>,
    /// When the gate opens by itself.
    opens: Instant,
}

/// Attempts that are remembered.
const KEPT_ATTEMPTS: usize = 256;

/// How long the gate stays closed without a word of its owner.
pub(super) const CLOSED_AT_MOST: Duration = Duration::from_secs(3);

impl Snapshot {
    /// Whether some work has to wait.
    pub(super) fn holds_back(&self, work: WorkId) -> bool {
        self.closed.as_ref().is_some_and(|closed| !closed.lets_through(work))
    }

    /// Keeps a push until the gate opens.
    pub(super) fn hold(&mut self, ticket: Ticket, work: WorkId) {
        self.held.push((ticket, work));
    }

    /// The owner of what is marked and not written.
    pub(super) fn marked_by(&self) -> Option<Owner> {
        self.marked.as_ref().map(|(_, owner)| *owner)
    }

    /// Closes the gate, or says who is in the way.
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

    /// What all servers have to reach. Pushes of it that were held back may pass.
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

    /// The moment is marked: everything continues.
    pub(super) fn mark(&mut self, id: &str, effects: &mut Vec<Effect>) {
        if let Some(closed) = self.closed.take() {
            self.marked = Some((id.to_owned(), closed.owner));
        }
        self.end(id);
        self.open(effects);
    }

    /// What was marked is being written: from here on it is the writer's.
    pub(super) fn written(&mut self, id: &str) {
        self.marked.take_if(|(marked, _)| marked == id);
    }

    /// A save is given up: everything continues, and what was marked is forgotten. Whether the gate was closed for it.
    pub(super) fn release(&mut self, id: &str, effects: &mut Vec<Effect>) -> bool {
        // Noted first: a prepare that was overtaken finds it.
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

    /// An owner is gone, or an older incarnation of a worker: its saves are given up. Whether the gate was closed for one.
    pub(super) fn give_up(&mut self, is_gone: impl Fn(Owner) -> bool, effects: &mut Vec<Effect>) -> bool {
        let marked = self.marked.as_ref().filter(|(_, owner)| is_gone(*owner)).map(|(id, _)| id.clone());
        let closed = self.closed.as_ref().filter(|closed| is_gone(closed.owner)).map(|closed| closed.id.clone());
        let mut was_closed = false;
        for id in marked.into_iter().chain(closed) {
            was_closed |= self.release(&id, effects);
        }
        was_closed
    }

    /// Opens the gate if nobody continued in time; says whether it did.
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
