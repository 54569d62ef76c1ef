//! What a program needs of one server: its tables, the workers that train on them, and the server's duties in their mode.

use std::ops::Range;

use openfleet_core::strategy::Mode;
use openfleet_table::{DenseSpec, SparseSpec};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What a program needs of one server: its part of the tables, and the workers that train on them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// How pushes are applied.
    pub mode: Mode,
    /// Number of workers.
    pub workers: u32,
    /// Training threads per worker. A stream is one thread of one worker.
    pub threads: u32,
    /// Sparse tables in order of their numbers, with names for messages.
    pub sparse: Vec<(String, SparseSpec)>,
    /// Dense blocks in order of their numbers.
    pub dense: Vec<(String, DenseSpec)>,
    /// Which part of all tables this server has.
    #[serde(default, rename = "here")]
    pub share: ServerShare,
}

/// Which part of a program's tables one server has. Checkpoints need it, training does not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerShare {
    /// Number of this server.
    pub server: u32,
    /// Number of servers.
    pub servers: u32,
    /// All dense parameters, with their whole shapes.
    pub parameters: Vec<(String, DenseSpec)>,
    /// For each dense block, the number of its parameter and its offset in that parameter.
    pub blocks: Vec<(u32, u64)>,
}

impl Default for ServerShare {
    /// The only server of a program without dense parameters.
    fn default() -> Self {
        ServerShare { server: 0, servers: 1, parameters: Vec::new(), blocks: Vec::new() }
    }
}

/// Maximum number of streams of a job. Bounds the memory that a server uses for them.
pub(crate) const MOST_STREAMS: u32 = 1 << 20;

impl Description {
    /// The team that trains on the tables.
    pub(crate) fn team(&self) -> Team {
        Team { mode: self.mode, workers: self.workers, threads: self.threads }
    }
}

/// The workers that train on the tables of a job, and their mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Team {
    /// How pushes are applied.
    pub mode: Mode,
    /// Number of workers.
    pub workers: u32,
    /// Training threads per worker.
    pub threads: u32,
}

/// What a mode requires of a server. A [`Mode`] is resolved into this once; nothing else on the server distinguishes modes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Duties {
    /// The groups of streams that step together; empty if none do.
    pub(crate) groups: Vec<Range<u32>>,
    /// Whether optimizers run on the server. In geo mode servers only add differences: the optimizers and their state are on
    /// the workers.
    pub(crate) runs_optimizers: bool,
}

impl Team {
    /// What the mode requires of a server.
    pub(crate) fn duties(&self) -> Duties {
        let groups = match self.mode {
            Mode::Sync | Mode::Hybrid => std::iter::once(0..self.streams()).collect(),
            Mode::HalfAsync => (0..self.workers).map(|worker| self.streams_of(worker)).collect(),
            // A collective job has no servers.
            Mode::Async | Mode::Geo | Mode::Collective => Vec::new(),
        };
        Duties { groups, runs_optimizers: self.mode != Mode::Geo }
    }

    /// Whether a stream steps together with others. Second streams never do.
    pub(crate) fn is_grouped(&self, stream: u32) -> bool {
        matches!(self.mode, Mode::Sync | Mode::Hybrid | Mode::HalfAsync) && stream < self.streams()
    }

    /// Number of training threads of all workers.
    pub(crate) fn streams(&self) -> u32 {
        self.workers.saturating_mul(self.threads)
    }

    /// The streams of one worker; empty if the job has no such worker.
    pub(crate) fn streams_of(&self, worker: u32) -> Range<u32> {
        if worker < self.workers { worker * self.threads..(worker + 1) * self.threads } else { 0..0 }
    }

    /// The stream that numbers the other pushes of a stream: in hybrid mode the sparse gradients of each thread, in geo mode
    /// the exchanges of the worker (under its first thread).
    pub(crate) fn second_stream(&self, stream: u32) -> u32 {
        self.streams() + stream
    }

    /// Fails if there are no streams, or more than [`MOST_STREAMS`].
    pub(crate) fn check(&self) -> Result<()> {
        if (1..=MOST_STREAMS).contains(&self.streams()) {
            return Ok(());
        }
        Err(Error::Streams { workers: self.workers, threads: self.threads, most: MOST_STREAMS })
    }

    /// Fails unless the stream belongs to the worker: no worker pushes in another's name. Second streams are numbered after all
    /// others, in the same order. This also bounds the memory that is kept per stream.
    pub(crate) fn check_stream(&self, worker: u32, stream: u32) -> Result<()> {
        let count = self.streams();
        if count == 0 || stream >= count.saturating_mul(2) {
            return Err(Error::UnknownStream { stream, count });
        }
        let owner = stream % count / self.threads;
        if owner == worker { Ok(()) } else { Err(Error::NotYours { worker, stream, owner }) }
    }
}

/// Fails if the job has no such worker, or too many workers.
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
