//! What each rank is about to do, and what all of them do next.
//!
//! Before every operation the ranks tell each other which one they are at. A rank that has run out of data, waits at a barrier
//! or departs takes part in the steps of the others without data, so uneven data makes nobody wait for ever; two ranks at
//! different operations get an error that names both.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::error::{Error, Result};

/// What a rank is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Call {
    kind: u32,
    /// Of a step: whether this rank's parameters may differ from the others'. Of a reduction: its operation. Of a broadcast:
    /// its root.
    detail: u32,
    /// Of a step: the program.
    program: u64,
    /// Of a step: bytes of this rank's sparse gradients. Of an average: the batches that this rank has trained since the last
    /// one. Of others: the number of elements.
    length: u64,
    /// Of a step: the bits of what multiplies its learning rates, which ranks without data apply too.
    rate_factor: u32,
    _unused: u32,
}

const STEP: u32 = 1;
const END_OF_DATA: u32 = 2;
const BARRIER: u32 = 3;
const ALL_REDUCE: u32 = 4;
const BROADCAST: u32 = 5;
const ALL_GATHER: u32 = 6;
const REDUCE_SCATTER: u32 = 7;
const DEPART: u32 = 8;
const AVERAGE: u32 = 9;

impl Call {
    fn new(kind: u32, detail: u32, program: u64, length: usize) -> Self {
        Call { kind, detail, program, length: length as u64, rate_factor: 1.0f32.to_bits(), _unused: 0 }
    }

    /// A training step of a program. `is_new`: the parameters of this rank may differ from the others'.
    pub fn step(program: u64, is_new: bool, sparse_bytes: usize) -> Self {
        Call::new(STEP, u32::from(is_new), program, sparse_bytes)
    }

    /// The same step with its learning rates multiplied by a factor.
    #[must_use]
    pub fn at_rate_factor(self, factor: f32) -> Self {
        Call { rate_factor: factor.to_bits(), ..self }
    }

    /// Parameters are averaged, as local SGD does from time to time, after as many batches since the last average.
    pub fn average(program: u64, is_new: bool, batches: u64) -> Self {
        Call::new(AVERAGE, u32::from(is_new), program, batches as usize)
    }

    /// This rank has no more data in this pass.
    pub fn end_of_data() -> Self {
        Call::new(END_OF_DATA, 0, 0, 0)
    }

    /// A barrier.
    pub fn barrier() -> Self {
        Call::new(BARRIER, 0, 0, 0)
    }

    /// A reduction of as many elements.
    pub fn all_reduce(detail: u32, length: usize) -> Self {
        Call::new(ALL_REDUCE, detail, 0, length)
    }

    /// A reduction of which every rank gets a part.
    pub fn reduce_scatter(detail: u32, length: usize) -> Self {
        Call::new(REDUCE_SCATTER, detail, 0, length)
    }

    /// A broadcast from a rank.
    pub fn broadcast(root: u32, length: usize) -> Self {
        Call::new(BROADCAST, root, 0, length)
    }

    /// Gathers arrays, whose lengths may differ.
    pub fn all_gather(length: usize) -> Self {
        Call::new(ALL_GATHER, 0, 0, length)
    }

    /// This rank has nothing more to do.
    pub fn depart() -> Self {
        Call::new(DEPART, 0, 0, 0)
    }

    /// Of a step: bytes of sparse gradients. Of an average: batches since the last one. Of others: the number of elements.
    pub fn length(&self) -> usize {
        self.length as usize
    }

    /// Whether the rank has trained with data.
    pub(crate) fn trains(&self) -> bool {
        matches!(self.kind, STEP | AVERAGE)
    }

    /// Whether two ranks at these calls are at the same operation.
    fn is_same(&self, other: &Call) -> bool {
        let same_length = self.length == other.length || matches!(self.kind, STEP | AVERAGE | ALL_GATHER);
        let same_detail = self.detail == other.detail || self.trains();
        let same_rates = self.rate_factor == other.rate_factor;
        self.kind == other.kind && self.program == other.program && same_detail && same_length && same_rates
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.length;
        match self.kind {
            STEP => {
                write!(f, "a training step of program {:016x}", self.program)?;
                match f32::from_bits(self.rate_factor) {
                    1.0 => Ok(()),
                    factor => write!(f, " at {factor} times its first learning rate"),
                }
            }
            AVERAGE => write!(f, "averaging the parameters of program {:016x}", self.program),
            END_OF_DATA => write!(f, "the end of its data"),
            BARRIER => write!(f, "a barrier"),
            ALL_REDUCE => write!(f, "an all-reduce of {length} numbers"),
            BROADCAST => write!(f, "a broadcast of {length} bytes from rank {}", self.detail),
            ALL_GATHER => write!(f, "an all-gather"),
            REDUCE_SCATTER => write!(f, "a reduce-scatter of {length} numbers"),
            _ => write!(f, "the end of its script"),
        }
    }
}

/// What all ranks do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// What this rank called: by all ranks that have not departed, or a step by some of them.
    Own {
        /// Every rank's call.
        calls: Vec<Call>,
    },
    /// A step that other ranks called. This rank takes part without data, and then calls again.
    Others {
        /// The program.
        program: u64,
        /// Whether parameters are averaged, instead of a step with gradients.
        averages: bool,
        /// Every rank's call.
        calls: Vec<Call>,
    },
    /// Some ranks are not there yet, or have less to do: this rank calls again.
    Again,
}

impl Turn {
    /// What a rank at `calls[rank]` does, given the calls of all ranks.
    ///
    /// # Errors
    /// If two ranks are at different operations.
    pub(super) fn of(rank: usize, calls: &[Call]) -> Result<Self> {
        let own = calls[rank];
        if let Some(first) = calls.iter().position(Call::trains) {
            if let Some(other) = calls.iter().position(|call| call.trains() && !call.is_same(&calls[first])) {
                return Err(disagreement(calls, first, other));
            }
            let (program, averages) = (calls[first].program, calls[first].kind == AVERAGE);
            let calls = calls.to_vec();
            return Ok(if own.trains() { Turn::Own { calls } } else { Turn::Others { program, averages, calls } });
        }
        // Nobody trains, so a pass is over for whoever has reached its end.
        if own.kind == END_OF_DATA {
            return Ok(Turn::Own { calls: calls.to_vec() });
        }
        let is_waiting = |call: &Call| !matches!(call.kind, END_OF_DATA | DEPART);
        if let Some(first) = calls.iter().position(is_waiting) {
            if let Some(other) = calls.iter().position(|call| is_waiting(call) && !call.is_same(&calls[first])) {
                return Err(disagreement(calls, first, other));
            }
            let is_complete = !calls.iter().any(|call| call.kind == END_OF_DATA);
            // A rank that departs takes part in the operations of the others, with nothing.
            return Ok(if is_complete { Turn::Own { calls: calls.to_vec() } } else { Turn::Again });
        }
        let all_depart = calls.iter().all(|call| call.kind == DEPART);
        Ok(if all_depart { Turn::Own { calls: calls.to_vec() } } else { Turn::Again })
    }
}

/// How a rank without anything to contribute takes part in an operation.
pub(super) enum Participation {
    /// There is nothing to exchange.
    Nothing,
    /// It gathers, with an empty block.
    Gather,
    /// It receives.
    Broadcast { root: usize },
    /// It reduces numbers that change nothing.
    Reduce { detail: u32, scatters: bool },
}

impl Call {
    pub(super) fn participation(&self) -> Participation {
        match self.kind {
            ALL_GATHER => Participation::Gather,
            BROADCAST => Participation::Broadcast { root: self.detail as usize },
            ALL_REDUCE | REDUCE_SCATTER => {
                Participation::Reduce { detail: self.detail, scatters: self.kind == REDUCE_SCATTER }
            }
            _ => Participation::Nothing,
        }
    }
}

/// Whether every rank departs.
pub(super) fn all_depart(calls: &[Call]) -> bool {
    calls.iter().all(|call| call.kind == DEPART)
}

/// The number of ranks that have not departed.
pub(super) fn present(calls: &[Call]) -> usize {
    calls.iter().filter(|call| call.kind != DEPART).count()
}

/// The operation of the ranks that have not departed, for one that has.
pub(super) fn of_others(calls: &[Call]) -> Option<Call> {
    calls.iter().find(|call| call.kind != DEPART).copied()
}

/// Ranks that have data in a step.
pub(crate) fn participants(calls: &[Call]) -> usize {
    calls.iter().filter(|call| call.trains()).count()
}

/// What multiplies the learning rates of a step; the same on all ranks that have data.
pub(crate) fn rate_factor(calls: &[Call]) -> f32 {
    calls.iter().find(|call| call.trains()).map_or(1.0, |call| f32::from_bits(call.rate_factor))
}

/// Whether the parameters of a rank may differ from the others'.
pub(crate) fn any_is_new(calls: &[Call]) -> bool {
    calls.iter().any(|call| call.trains() && call.detail != 0)
}

fn disagreement(calls: &[Call], first: usize, other: usize) -> Error {
    Error::RanksDisagree {
        rank: first as u32,
        call: calls[first].to_string(),
        other: other as u32,
        other_call: calls[other].to_string(),
    }
}
