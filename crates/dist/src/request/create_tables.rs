//! Make the tables of a program: every worker asks, the first one's request makes them.
//!
//! Workers run the same program, so they ask for the same; a difference is an error that names the table. The request
//! carries first values of the dense blocks, which count only where the block is new: a restarted worker does not undo
//! what was learnt.

use std::ops::Range;

use openfleet_core::strategy::Mode;
use openfleet_table::{DenseSpec, SparseSpec};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};
use crate::server::State;

/// What a program needs of one server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tables {
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
    #[serde(default)]
    pub here: Here,
}

/// Which part of a program's tables one server keeps: what a checkpoint has to know, and training does not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Here {
    /// Which server.
    pub server: u32,
    /// Of how many.
    pub servers: u32,
    /// All dense parameters, whole.
    pub parameters: Vec<(String, DenseSpec)>,
    /// For each dense block its parameter, by number, and where it begins in that.
    pub blocks: Vec<(u32, u64)>,
}

impl Default for Here {
    /// The only server, of a program without dense parameters.
    fn default() -> Self {
        Here { server: 0, servers: 1, parameters: Vec::new(), blocks: Vec::new() }
    }
}

/// The most streams of a job: a bound on what a server keeps for them.
pub(crate) const MOST_STREAMS: u32 = 1 << 20;

impl Tables {
    /// Whether rules run on the server. GEO's servers add differences; the rules run on the workers, and so does their state.
    pub fn has_rules(&self) -> bool {
        self.mode != Mode::Geo
    }

    /// Training threads of all workers.
    pub fn streams(&self) -> u32 {
        self.workers.saturating_mul(self.threads)
    }

    /// The streams of one worker; none of a worker that the job does not have.
    pub fn streams_of(&self, worker: u32) -> Range<u32> {
        if worker < self.workers { worker * self.threads..(worker + 1) * self.threads } else { 0..0 }
    }

    /// Fails unless there is somebody to train, and not absurdly many.
    pub fn check(&self) -> Result<()> {
        if (1..=MOST_STREAMS).contains(&self.streams()) {
            return Ok(());
        }
        Err(Error::Streams { workers: self.workers, threads: self.threads, most: MOST_STREAMS })
    }
}

/// Encodes a request with first values of the dense blocks, in order.
pub fn encode<'a>(payload: &mut Payload, tables: &Tables, first_values: impl Iterator<Item = &'a [f32]>) -> Result<()> {
    payload.clear();
    let description = serde_json::to_vec(tables).map_err(|_| Error::Damaged { what: "description of tables" })?;
    payload.put(&[description.len() as u64]);
    payload.put(&description);
    first_values.for_each(|values| payload.put(values));
    Ok(())
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Whether the tables are new.
    pub is_new: bool,
    /// A number that grows with every request of this kind. A worker counts its changes of membership from there, so those of
    /// a restarted worker are newer than all of its predecessor's.
    pub session: u64,
    /// What the program kept beside its tables, where the first server took them from a checkpoint.
    pub states: Vec<u8>,
}

/// Reads an answer.
pub fn decode(reply: &[u8]) -> Result<Created> {
    let mut reader = Reader::new(reply);
    let (is_new, session, length) = (reader.one::<u32>()? == 1, reader.one()?, reader.one::<u64>()?);
    let states = reader.take(usize::try_from(length).unwrap_or(usize::MAX))?.to_vec();
    Ok(Created { is_new, session, states })
}

/// Answers a request.
pub fn apply(state: &State, payload: &[u8]) -> Result<Payload> {
    let mut reader = Reader::new(payload);
    let length = reader.one::<u64>()?;
    let description = reader.take::<u8>(usize::try_from(length).unwrap_or(usize::MAX))?;
    let tables: Tables =
        serde_json::from_slice(description).map_err(|_| Error::Damaged { what: "description of tables" })?;
    let mut values = Vec::with_capacity(tables.dense.len());
    for (_, spec) in &tables.dense {
        let count = spec.shape.iter().try_fold(1usize, |count, &side| count.checked_mul(side)).unwrap_or(usize::MAX);
        values.push(reader.take::<f32>(count)?);
    }
    reader.end()?;
    let Created { is_new, session, states } = state.create_tables(tables, &values)?;
    let mut reply = Payload::new();
    reply.put(&[u32::from(is_new)]);
    reply.put(&[session]);
    reply.put(&[states.len() as u64]);
    reply.put(&states);
    Ok(reply)
}
