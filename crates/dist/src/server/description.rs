//! What a program needs of one server: its tables, who trains on them, and what that asks of the server.

use std::ops::Range;

use openfleet_core::strategy::Mode;
use openfleet_table::{DenseSpec, SparseSpec};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What a program needs of one server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// How pushes are applied.
    pub mode: Mode,
    /// How many workers take part.
    pub workers: u32,
    /// Training threads of each; a stream is one thread of one worker.
    pub threads: u32,
    /// Sparse tables by number, with names for people.
    pub sparse: Vec<(String, SparseSpec)>,
    /// Dense blocks by number.
    pub dense: Vec<(String, DenseSpec)>,
    /// Which part of the whole this is.
    #[serde(default, rename = "here")]
    pub share: ServerShare,
}

/// Which part of a program's tables one server keeps: a checkpoint has to know, training does not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerShare {
    /// Which server.
    pub server: u32,
    /// Of how many.
    pub servers: u32,
    /// All dense parameters, whole.
    pub parameters: Vec<(String, DenseSpec)>,
    /// For each dense block its parameter, by number, and where it begins in that.
    pub blocks: Vec<(u32, u64)>,
}

impl Default for ServerShare {
    /// The only server, of a program without dense parameters.
    fn default() -> Self {
        ServerShare { server: 0, servers: 1, parameters: Vec::new(), blocks: Vec::new() }
    }
}

/// The most streams of a job: a bound on what a server keeps for them.
pub(crate) const MOST_STREAMS: u32 = 1 << 20;

impl Description {
    /// Who trains, and how.
    pub(crate) fn team(&self) -> Team {
        Team { mode: self.mode, workers: self.workers, threads: self.threads }
    }
}

/// Who trains on the tables of a job, and in which mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Team {
    /// How pushes are applied.
    pub mode: Mode,
    /// How many workers take part.
    pub workers: u32,
    /// Training threads of each.
    pub threads: u32,
}

/// What a mode asks of a server. A [`Mode`] is resolved into this once; nothing else on the server looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Duties {
    /// The streams that step together, if any do.
    pub(crate) groups: Vec<Range<u32>>,
    /// Whether optimizers run here. GEO's servers add differences: its optimizers, and their state, are on the workers.
    pub(crate) runs_optimizers: bool,
}

impl Team {
    /// What the mode asks of a server.
    pub(crate) fn duties(&self) -> Duties {
        let groups = match self.mode {
            Mode::Sync | Mode::Hybrid => std::iter::once(0..self.streams()).collect(),
            Mode::HalfAsync => (0..self.workers).map(|worker| self.streams_of(worker)).collect(),
            Mode::Async | Mode::Geo => Vec::new(),
        };
        Duties { groups, runs_optimizers: self.mode != Mode::Geo }
    }

    /// Whether a stream steps together with others. Second streams never do.
    pub(crate) fn is_grouped(&self, stream: u32) -> bool {
        matches!(self.mode, Mode::Sync | Mode::Hybrid | Mode::HalfAsync) && stream < self.streams()
    }

    /// Training threads of all workers.
    pub(crate) fn streams(&self) -> u32 {
        self.workers.saturating_mul(self.threads)
    }

    /// The streams of one worker; none of a worker that the job does not have.
    pub(crate) fn streams_of(&self, worker: u32) -> Range<u32> {
        if worker < self.workers { worker * self.threads..(worker + 1) * self.threads } else { 0..0 }
    }

    /// The stream under which a worker's other pushes are numbered: sparse gradients of hybrid by thread, GEO's exchanges
    /// under that of the first thread.
    pub(crate) fn second_stream(&self, stream: u32) -> u32 {
        self.streams() + stream
    }

    /// Fails unless there is somebody to train, and not absurdly many.
    pub(crate) fn check(&self) -> Result<()> {
        if (1..=MOST_STREAMS).contains(&self.streams()) {
            return Ok(());
        }
        Err(Error::Streams { workers: self.workers, threads: self.threads, most: MOST_STREAMS })
    }

    /// Fails unless the stream is the worker's: nobody pushes in another's name. Second streams are numbered after all
    /// others, in the same order. What is kept per stream is so bounded.
    pub(crate) fn check_stream(&self, worker: u32, stream: u32) -> Result<()> {
        let count = self.streams();
        if count == 0 || stream >= count.saturating_mul(2) {
            return Err(Error::UnknownStream { stream, count });
        }
        let owner = stream % count / self.threads;
        if owner == worker { Ok(()) } else { Err(Error::NotYours { worker, stream, owner }) }
    }
}

/// Fails unless the job has such a worker, and not absurdly many.
pub(crate) fn check_worker(worker: u32, workers: u32) -> Result<()> {
    if worker < workers && workers <= MOST_STREAMS {
        return Ok(());
    }
    Err(Error::UnknownWorker { worker, count: workers })
}

/// Fails, naming the table, unless two workers want the same tables and the same team.
pub(super) fn check_same(existing: &Description, wanted: &Description) -> Result<()> {
    let mismatch = |table: &str, existing: String, wanted: String| Error::TableMismatch {
        table: table.to_owned(),
        existing,
        wanted,
    };
    if existing.team() != wanted.team() {
        let text = |tables: &Description| {
            format!("mode {}, {} workers of {} threads", tables.mode, tables.workers, tables.threads)
        };
        return Err(mismatch("all", text(existing), text(wanted)));
    }
    if existing.sparse.len() != wanted.sparse.len() || existing.dense.len() != wanted.dense.len() {
        let text = |tables: &Description| format!("{} sparse, {} dense", tables.sparse.len(), tables.dense.len());
        return Err(mismatch("all", text(existing), text(wanted)));
    }
    for (a, b) in existing.sparse.iter().zip(&wanted.sparse) {
        if a != b {
            return Err(mismatch(&a.0, format!("{a:?}"), format!("{b:?}")));
        }
    }
    for (a, b) in existing.dense.iter().zip(&wanted.dense) {
        if a != b {
            return Err(mismatch(&a.0, format!("{a:?}"), format!("{b:?}")));
        }
    }
    Ok(())
}
