//! Which workers are connected, which are missing, and since when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use openfleet_core::topology::Incarnation;
use serde::{Deserialize, Serialize};

use super::Owner;

/// A worker that is gone or silent, and has not departed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    /// Rank of the worker.
    pub rank: u32,
    /// How long it has been missing.
    pub seconds: f64,
}

/// Why a server stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Every worker has departed.
    Done,
    /// All workers are gone, and not all of them have departed.
    Deserted,
    /// It was told to stop.
    Asked,
}

/// A worker whose connection broke may reconnect at once; after this time it is reported as missing.
const MISSED: Duration = Duration::from_secs(1);
/// After this time, the saves of a missing worker are aborted.
const GONE: Duration = Duration::from_secs(10);
/// How long a server waits for workers that are all gone without having departed.
pub(super) const DESERTED: Duration = Duration::from_secs(600);

/// The workers of a job, as one server sees them.
#[derive(Default)]
pub(super) struct Membership {
    sessions: BTreeMap<u32, Session>,
    departed: BTreeSet<u32>,
}

struct Session {
    incarnation: Incarnation,
    connections: u32,
    /// Whether it takes part in the job, and does not only ask for the status.
    entered: bool,
    /// Since when it has sent nothing.
    missing: Option<Instant>,
}

impl Membership {
    pub(super) fn admit(&mut self, rank: u32, incarnation: Incarnation) -> Result<(), String> {
        let session =
            self.sessions.entry(rank).or_insert(Session { incarnation, connections: 0, entered: false, missing: None });
        if incarnation < session.incarnation {
            let newest = session.incarnation;
            return Err(format!("incarnation {incarnation} of worker {rank} was replaced by incarnation {newest}"));
        }
        if incarnation > session.incarnation {
            session.incarnation = incarnation;
        }
        session.connections += 1;
        session.missing = None;
        Ok(())
    }

    pub(super) fn enter(&mut self, rank: u32) {
        self.departed.remove(&rank);
        if let Some(session) = self.sessions.get_mut(&rank) {
            session.entered = true;
        }
    }

    pub(super) fn disconnected(&mut self, rank: u32, now: Instant) {
        if let Some(session) = self.sessions.get_mut(&rank) {
            session.connections = session.connections.saturating_sub(1);
            if session.connections == 0 {
                session.missing.get_or_insert(now);
            }
        }
    }

    pub(super) fn silent(&mut self, rank: u32, since: Instant) {
        if let Some(session) = self.sessions.get_mut(&rank) {
            session.missing.get_or_insert(since);
        }
    }

    pub(super) fn heard(&mut self, rank: u32) {
        if let Some(session) = self.sessions.get_mut(&rank).filter(|session| session.connections > 0) {
            session.missing = None;
        }
    }

    pub(super) fn departed(&mut self, rank: u32) {
        self.departed.insert(rank);
    }

    pub(super) fn incarnation(&self, rank: u32) -> Option<Incarnation> {
        self.sessions.get(&rank).map(|session| session.incarnation)
    }

    pub(super) fn connected(&self) -> Vec<u32> {
        self.sessions.iter().filter(|(_, session)| session.connections > 0).map(|(&rank, _)| rank).collect()
    }

    /// Workers that have entered and are missing long enough to be reported.
    pub(super) fn absent(&self, now: Instant) -> Vec<Absent> {
        let missing = self.entered().filter_map(|(&rank, session)| {
            let missing = now.saturating_duration_since(session.missing?);
            (missing >= MISSED).then_some(Absent { rank, seconds: missing.as_secs_f64() })
        });
        missing.collect()
    }

    /// Whether the owner of a save is connected. A worker in this process always is.
    pub(super) fn is_connected(&self, owner: Owner) -> bool {
        let Some(incarnation) = owner.incarnation else { return true };
        let session = self.sessions.get(&owner.rank);
        session.is_some_and(|session| session.incarnation == incarnation && session.connections > 0)
    }

    /// Whether the owner of a save will not continue it.
    pub(super) fn is_gone_permanently(&self, owner: Owner, now: Instant) -> bool {
        let Some(incarnation) = owner.incarnation else { return false };
        let Some(session) = self.sessions.get(&owner.rank) else { return true };
        let gone = session.missing.is_some_and(|since| now >= since + GONE);
        session.incarnation != incarnation || gone
    }

    /// Whether all workers have been gone for too long.
    pub(super) fn deserted(&self, now: Instant) -> Option<End> {
        let mut entered = self.entered().peekable();
        entered.peek()?;
        let gone = |session: &Session| session.missing.is_some_and(|since| now >= since + DESERTED);
        entered.all(|(_, session)| gone(session)).then_some(End::Deserted)
    }

    fn entered(&self) -> impl Iterator<Item = (&u32, &Session)> {
        self.sessions.iter().filter(|(rank, session)| session.entered && !self.departed.contains(rank))
    }
}
