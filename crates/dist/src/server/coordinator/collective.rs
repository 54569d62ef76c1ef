//! Barriers, all-reduces and all-to-alls, numbered by the workers' scripts, one after the other.
//!
//! A small result is recorded: a restarted worker that repeats a completed collective gets it at once. A result that was too
//! large to record (the rounds of a global shuffle) can only be repeated by all workers together, after all of them were
//! restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::super::description::check_worker;
use super::{Answer, Effect, Ticket};
use crate::error::{Error, Result};
use crate::frame::Payload;

/// How the numbers of many workers are reduced to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum Reduce {
    /// The sum.
    Sum = 0,
    /// The maximum.
    Max = 1,
    /// The minimum.
    Min = 2,
    /// The sum, divided by the number of workers that take part.
    Mean = 3,
}

impl Reduce {
    /// All operations.
    pub const ALL: [Reduce; 4] = [Reduce::Sum, Reduce::Max, Reduce::Min, Reduce::Mean];

    pub(crate) fn from_number(number: u32) -> Result<Self> {
        let damaged = Error::Damaged { what: "all-reduce: no such operation" };
        Reduce::ALL.into_iter().find(|known| *known as u32 == number).ok_or(damaged)
    }

    /// Reduces two numbers; for the mean, adds them. NaN wins, whichever side it is on: it is a result that the user has to see.
    pub fn of(self, left: f64, right: f64) -> f64 {
        match self {
            Reduce::Sum | Reduce::Mean => left + right,
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
            Reduce::Mean => "mean",
        })
    }
}

/// A collective operation; all workers must call the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Collective {
    /// Workers wait for each other.
    Barrier {
        /// Number of workers in the job.
        workers: u32,
    },
    /// The numbers of all workers are reduced.
    AllReduce {
        /// Number of workers in the job.
        workers: u32,
        /// The operation.
        op: Reduce,
        /// How many numbers each worker contributes.
        length: usize,
    },
    /// Every worker sends something to every worker.
    AllToAll {
        /// Number of workers in the job.
        workers: u32,
    },
}

impl Collective {
    /// Number of workers in the job.
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

/// What a worker contributes to a collective.
#[derive(Debug, Clone)]
pub(crate) enum Contribution {
    /// Nothing: it only waits.
    Nothing,
    /// Numbers to reduce with those of the other workers.
    Numbers(Vec<f64>),
    /// Bytes for other workers, by rank.
    Parts(BTreeMap<u32, Vec<u8>>),
}

/// A completed collective, with its result if that was recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completed {
    /// The operation.
    pub collective: Collective,
    /// The result of an all-reduce; `None` for a barrier, and if there were too many numbers to record.
    pub numbers: Option<Vec<f64>>,
}

/// Maximum numbers recorded of one result, and of all results together.
const MOST_NUMBERS: usize = 1 << 16;
const MOST_IN_ALL: usize = 1 << 21;

/// The open collective, the completed ones, and those that restarted workers repeat together.
#[derive(Default)]
pub(super) struct Collectives {
    departed: BTreeSet<u32>,
    /// Number of the open collective. Only the first server sees all of them; the others trust the workers' numbers.
    number: u64,
    completed: BTreeMap<u64, Completed>,
    /// Numbers recorded in `completed`.
    recorded: usize,
    open: OpenCollective,
    /// The replies of the last collective, for repeats.
    last: Option<std::result::Result<Answers, Failure>>,
    /// All workers were restarted, and none has reached a new collective since.
    recalled: bool,
    /// Completed collectives without a recorded result that all workers repeat.
    repeated: BTreeMap<u64, (OpenCollective, Option<Answers>)>,
}

/// A collective that not all workers have reached yet.
#[derive(Default)]
struct OpenCollective {
    /// The first worker to arrive, and the operation it wants.
    first: Option<(u32, Collective)>,
    contributions: BTreeMap<u32, Contribution>,
    /// For each worker, its first request and repeats of it.
    waiting: Vec<(u32, Ticket)>,
}

/// The replies of a successful collective.
#[derive(Debug, Clone)]
enum Answers {
    Same(Payload),
    Each(BTreeMap<u32, Payload>),
}

impl Answers {
    fn to(&self, worker: u32) -> Payload {
        match self {
            Answers::Same(answer) => answer.clone(),
            Answers::Each(answers) => answers.get(&worker).cloned().unwrap_or_default(),
        }
    }
}

/// Why a collective failed, the same for all workers.
#[derive(Debug, Clone, Copy)]
enum Failure {
    Disagreement {
        workers: [u32; 2],
        wanted: [Collective; 2],
    },
    /// A part was for a worker that has departed.
    Undeliverable {
        worker: u32,
    },
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Disagreement { workers: [other, worker], wanted: [other_wanted, wanted] } => {
                Error::Disagreement { worker, wanted, other, other_wanted }
            }
            Failure::Undeliverable { worker } => Error::Undeliverable { worker },
        }
    }
}

impl Collectives {
    /// A worker arrives; answered when all workers have arrived.
    pub(super) fn arrive(
        &mut self,
        worker: u32,
        number: u64,
        wanted: Collective,
        contribution: Contribution,
        ticket: Ticket,
        effects: &mut Vec<Effect>,
    ) -> Result<()> {
        check_worker(worker, wanted.workers())?;
        if let Contribution::Parts(parts) = &contribution {
            parts.keys().try_for_each(|&to| check_worker(to, wanted.workers()))?;
        }
        if number < self.number {
            return self.repeat(worker, number, wanted, contribution, ticket, effects);
        }
        if self.open.first.is_none() {
            self.number = number;
        }
        if number != self.number || self.departed.contains(&worker) {
            return Err(Error::NotMeeting { worker, number, expected: self.number });
        }
        // A worker that reaches a new collective has repeated all earlier ones.
        self.recalled = false;
        self.repeated.clear();
        self.open.waiting.push((worker, ticket));
        let (first, agreed) = *self.open.first.get_or_insert((worker, wanted));
        if agreed != wanted {
            self.end(Err(Failure::Disagreement { workers: [first, worker], wanted: [agreed, wanted] }), effects);
        } else {
            // A restarted worker may contribute other numbers: use the newest.
            self.open.contributions.insert(worker, contribution);
            self.end_if_all(effects);
        }
        Ok(())
    }

    /// A collective that the job has already completed.
    fn repeat(
        &mut self,
        worker: u32,
        number: u64,
        wanted: Collective,
        contribution: Contribution,
        ticket: Ticket,
        effects: &mut Vec<Effect>,
    ) -> Result<()> {
        if number + 1 == self.number
            && let Some(last) = &self.last
        {
            effects.push(Effect::Answer(ticket, answer_of(last, worker)));
            return Ok(());
        }
        let known = self.completed.get(&number);
        if let Some(known) = known.filter(|known| known.collective != wanted) {
            let (before, now) = (known.collective, wanted);
            return Err(Error::OtherCollective { worker, number, before, now });
        }
        match (wanted, known.and_then(|known| known.numbers.as_ref())) {
            (Collective::Barrier { .. }, _) => effects.push(Effect::Answer(ticket, Answer::Payload(Payload::new()))),
            (Collective::AllReduce { .. }, Some(numbers)) => {
                let mut answer = Payload::new();
                answer.put(numbers);
                effects.push(Effect::Answer(ticket, Answer::Payload(answer)));
            }
            _ => {
                let (open, answers) = self.repeated.entry(number).or_default();
                if let Some(answers) = answers {
                    effects.push(Effect::Answer(ticket, Answer::Payload(answers.to(worker))));
                    return Ok(());
                }
                open.first.get_or_insert((worker, wanted));
                open.waiting.push((worker, ticket));
                open.contributions.insert(worker, contribution);
                if !open.is_complete(&self.departed) {
                    return Ok(());
                }
                let result = open.result();
                let waiting = std::mem::take(&mut open.waiting);
                effects.extend(
                    waiting.into_iter().map(|(worker, ticket)| Effect::Answer(ticket, answer_of(&result, worker))),
                );
                open.contributions.clear();
                *answers = result.ok();
            }
        }
        Ok(())
    }

    /// Whether a completed collective can only be repeated by all workers together.
    pub(super) fn needs_all(&self, number: u64) -> bool {
        let is_last = number + 1 == self.number && self.last.is_some();
        let is_lost = |completed: &Completed| match completed.collective {
            Collective::Barrier { .. } => false,
            Collective::AllReduce { .. } => completed.numbers.is_none(),
            Collective::AllToAll { .. } => true,
        };
        !self.recalled && !is_last && self.completed.get(&number).is_some_and(is_lost)
    }

    /// All workers restart: repeated collectives start from the beginning.
    pub(super) fn recall(&mut self) {
        self.recalled = true;
        self.repeated.clear();
        self.open = OpenCollective::default();
        // Restarted workers get the recorded result, or repeat the collective if it was not recorded.
        self.last = None;
    }

    /// A worker departs; the open collective may be complete without it.
    pub(super) fn depart(&mut self, worker: u32, effects: &mut Vec<Effect>) {
        self.departed.insert(worker);
        self.end_if_all(effects);
    }

    /// A departed worker takes part again.
    pub(super) fn rejoin(&mut self, worker: u32) {
        self.departed.remove(&worker);
    }

    /// Workers that have departed.
    pub(super) fn departed(&self) -> &BTreeSet<u32> {
        &self.departed
    }

    /// The number of the open collective.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The completed collectives.
    pub(super) fn completed(&self) -> &BTreeMap<u64, Completed> {
        &self.completed
    }

    /// Continues after the completed collectives of a checkpoint.
    pub(super) fn restore(&mut self, completed: BTreeMap<u64, Completed>) {
        self.number = completed.keys().next_back().map_or(0, |last| last + 1);
        self.recorded = completed.values().filter_map(|completed| completed.numbers.as_ref()).map(Vec::len).sum();
        self.completed = completed;
    }

    /// The workers that the open collective waits for.
    pub(super) fn missing(&self) -> Vec<u32> {
        self.open.missing(&self.departed)
    }

    fn end_if_all(&mut self, effects: &mut Vec<Effect>) {
        if self.open.is_complete(&self.departed) {
            let result = self.open.result();
            self.end(result, effects);
        }
    }

    fn end(&mut self, result: std::result::Result<Answers, Failure>, effects: &mut Vec<Effect>) {
        let OpenCollective { first, waiting, .. } = std::mem::take(&mut self.open);
        for (worker, ticket) in waiting {
            effects.push(Effect::Answer(ticket, answer_of(&result, worker)));
        }
        let Some((_, collective)) = first else { return };
        let numbers = match (&result, collective) {
            (Ok(Answers::Same(answer)), Collective::AllReduce { length, .. }) if length <= MOST_NUMBERS => {
                Some(bytemuck::cast_slice(answer.bytes()).to_vec())
            }
            _ => None,
        };
        let count = numbers.as_ref().map_or(0, Vec::len);
        let numbers = numbers.filter(|_| self.recorded + count <= MOST_IN_ALL);
        self.recorded += numbers.as_ref().map_or(0, Vec::len);
        self.completed.insert(self.number, Completed { collective, numbers });
        self.number = self.number.saturating_add(1);
        self.last = Some(result);
    }
}

impl OpenCollective {
    fn missing(&self, departed: &BTreeSet<u32>) -> Vec<u32> {
        let Some((_, collective)) = self.first else { return Vec::new() };
        let is_missing = |worker: &u32| !self.contributions.contains_key(worker) && !departed.contains(worker);
        (0..collective.workers()).filter(is_missing).collect()
    }

    fn is_complete(&self, departed: &BTreeSet<u32>) -> bool {
        let Some((_, collective)) = self.first else { return false };
        let gone = departed.range(..collective.workers()).filter(|worker| !self.contributions.contains_key(worker));
        gone.count() + self.contributions.len() >= collective.workers() as usize
    }

    fn result(&self) -> std::result::Result<Answers, Failure> {
        match self.first.map(|(_, collective)| collective) {
            Some(Collective::AllReduce { op, .. }) => {
                let mut answer = Payload::new();
                answer.put(&reduced(op, self.contributions.values()));
                Ok(Answers::Same(answer))
            }
            Some(Collective::AllToAll { .. }) => delivered(&self.contributions).map(Answers::Each),
            Some(Collective::Barrier { .. }) | None => Ok(Answers::Same(Payload::new())),
        }
    }
}

fn answer_of(result: &std::result::Result<Answers, Failure>, worker: u32) -> Answer {
    match result {
        Ok(answers) => Answer::Payload(answers.to(worker)),
        Err(failure) => Answer::Failed((*failure).into()),
    }
}

/// All parts, sorted by receiver and then by sender.
fn delivered(brought: &BTreeMap<u32, Contribution>) -> std::result::Result<BTreeMap<u32, Payload>, Failure> {
    let mut mail: BTreeMap<u32, Vec<(u32, &[u8])>> = brought.keys().map(|&worker| (worker, Vec::new())).collect();
    for (&from, brought) in brought {
        let Contribution::Parts(parts) = brought else { continue };
        for (&to, part) in parts {
            mail.get_mut(&to).ok_or(Failure::Undeliverable { worker: to })?.push((from, part));
        }
    }
    let payload = |parts: &[(u32, &[u8])]| {
        let mut payload = Payload::new();
        put_parts(&mut payload, parts);
        payload
    };
    Ok(mail.into_iter().map(|(worker, parts)| (worker, payload(&parts))).collect())
}

/// Writes parts with the ranks of their receivers, or senders.
pub(crate) fn put_parts(payload: &mut Payload, parts: &[(u32, &[u8])]) {
    payload.put(&[parts.len() as u64]);
    payload.put(&parts.iter().map(|(worker, _)| *worker).collect::<Vec<_>>());
    payload.put(&parts.iter().map(|(_, part)| part.len() as u64).collect::<Vec<_>>());
    parts.iter().for_each(|(_, part)| payload.put(part));
}

/// Reduces in the given order, which is by rank.
fn reduced<'a>(op: Reduce, contributions: impl Iterator<Item = &'a Contribution>) -> Vec<f64> {
    let mut contributions = contributions.filter_map(|brought| match brought {
        Contribution::Numbers(values) => Some(values),
        Contribution::Nothing | Contribution::Parts(_) => None,
    });
    let mut result = contributions.next().cloned().unwrap_or_default();
    let mut count = 1.0;
    for values in contributions {
        result.iter_mut().zip(values).for_each(|(result, &value)| *result = op.of(*result, value));
        count += 1.0;
    }
    if op == Reduce::Mean {
        result.iter_mut().for_each(|result| *result /= count);
    }
    result
}
