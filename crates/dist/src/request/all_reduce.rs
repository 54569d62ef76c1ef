//! Numbers of all workers, made one: each sends as many, and everybody gets their sum, or the largest, or the smallest.
//!
//! The server reduces in the order of ranks, in double precision: the result does not depend on who came first. Meant for
//! metrics and decisions, a few kilobytes now and then; gradients travel by other ways.

use std::fmt;

use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};
use crate::server::{Brought, Outcome, State};

/// How numbers of many workers become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Reduce {
    /// Added.
    Sum = 0,
    /// The largest.
    Max = 1,
    /// The smallest.
    Min = 2,
}

impl Reduce {
    /// Every way.
    pub const ALL: [Reduce; 3] = [Reduce::Sum, Reduce::Max, Reduce::Min];

    fn from_number(number: u32) -> Result<Self> {
        let damaged = Error::Damaged { what: "all-reduce: no such operation" };
        Reduce::ALL.into_iter().find(|known| *known as u32 == number).ok_or(damaged)
    }

    /// Two numbers as one. A NaN stays one, whichever side it comes from: it is a result that somebody has to see.
    pub fn of(self, left: f64, right: f64) -> f64 {
        match self {
            Reduce::Sum => left + right,
            _ if left.is_nan() || right.is_nan() => f64::NAN,
            Reduce::Max => left.max(right),
            Reduce::Min => left.min(right),
        }
    }
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduce::Sum => "sum",
            Reduce::Max => "max",
            Reduce::Min => "min",
        })
    }
}

/// What workers meet for; all of them for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    /// To wait for each other.
    Barrier {
        /// Workers of the job.
        workers: u32,
    },
    /// To make their numbers one.
    AllReduce {
        /// Workers of the job.
        workers: u32,
        /// How.
        op: Reduce,
        /// How many numbers each brings.
        length: usize,
    },
    /// To give each other something.
    AllToAll {
        /// Workers of the job.
        workers: u32,
    },
}

impl Collective {
    /// Workers of the job.
    pub fn workers(&self) -> u32 {
        match *self {
            Collective::Barrier { workers }
            | Collective::AllReduce { workers, .. }
            | Collective::AllToAll { workers } => workers,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collective::Barrier { workers } => write!(f, "a barrier of {workers} workers"),
            Collective::AllToAll { workers } => write!(f, "an all-to-all of {workers} workers"),
            Collective::AllReduce { workers, op, length } => {
                write!(f, "the {op} of {length} values of {workers} workers")
            }
        }
    }
}

/// Encodes a request: the how-many-th collective, how many workers the job has, and this one's numbers.
pub fn encode(payload: &mut Payload, number: u64, workers: u32, op: Reduce, values: &[f64]) {
    payload.clear();
    payload.put(&[number]);
    payload.put(&[workers, op as u32]);
    payload.put(&[values.len() as u64]);
    payload.put(values);
}

/// Reads an answer: as many numbers as were sent.
pub fn decode(reply: &[u8], values: &mut [f64]) -> Result<()> {
    let mut reader = Reader::new(reply);
    values.copy_from_slice(reader.take(values.len())?);
    reader.end()
}

/// Answers when the last one asks.
pub fn apply(state: &State, worker: u32, payload: &[u8]) -> Result<Outcome> {
    let mut reader = Reader::new(payload);
    let number = reader.one::<u64>()?;
    let head = reader.take::<u32>(2)?;
    let length = usize::try_from(reader.one::<u64>()?).unwrap_or(usize::MAX);
    let values = reader.take::<f64>(length)?;
    reader.end()?;
    let collective = Collective::AllReduce { workers: head[0], op: Reduce::from_number(head[1])?, length };
    state.meet(worker, number, collective, Brought::Numbers(values.to_vec()))
}
