//! Step numbers of the training threads, and whether the servers have already applied a step.
//!
//! A worker counts the steps and passes of each stream from zero each time its process starts. A restarted worker reaches the
//! same numbers for the same work, so the work of its predecessor is recognised: by the worker, which skips it, and by the
//! servers, which answer without applying it again. The counters belong to the streams, not to a program: all programs of a
//! worker share them.

use std::sync::atomic::{AtomicU64, Ordering};

use openfleet_core::WorkId;
use openfleet_table::ledger::Covered;
use parking_lot::Mutex;

use super::Worker;
use crate::server::StreamPositions;

/// The next step of a training thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its number among the steps of its stream, from 0.
    pub number: u64,
    /// Whether every server had applied it before this process started. If so, it is skipped.
    pub is_applied: bool,
}

/// What the end of an implicit pass means to the job.
#[derive(Debug, Default)]
pub(crate) struct ImplicitEnd {
    /// Whether a thread made a step in it.
    pub(crate) has_steps: bool,
    /// The streams that the servers do not know to have left it, and its number for each.
    pub(crate) left: Vec<(u32, u64)>,
}

/// The streams of one worker.
pub struct Streams {
    worker: Worker,
    /// What each server had applied when this process entered the job.
    applied: Vec<StreamPositions>,
    threads: Mutex<Vec<Counter>>,
    attempts: AtomicU64,
}

/// The counters of one training thread.
#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    next: u64,
    /// Number of the last pass that it began, from 1; 0 before the first.
    pass: u64,
    state: PassState,
}

impl Counter {
    /// Ends the current pass; between two passes an empty implicit one. Returns its number.
    fn end(&mut self) -> u64 {
        if self.state == PassState::Between {
            self.pass += 1;
        }
        self.state = PassState::Between;
        self.pass
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum PassState {
    #[default]
    Between,
    /// Steps outside of a pass over a dataset form an implicit pass. It ends with the next pass, a barrier, or the end of the
    /// job. Where a script makes no such step, the implicit pass is empty and has a number all the same: so workers without data
    /// count like the others.
    Implicit {
        joined: bool,
    },
    Explicit,
}

impl Streams {
    /// The streams of a worker; `applied` is what each server had applied when the worker entered the job.
    pub(crate) fn new(worker: Worker, applied: Vec<StreamPositions>) -> Self {
        let threads = Mutex::new(vec![Counter::default(); worker.threads as usize]);
        Streams { worker, applied, threads, attempts: AtomicU64::new(0) }
    }

    /// Takes the next step of a thread. `also` is another stream whose push of the same number belongs to the step.
    pub(super) fn next(&self, thread: u32, also: Option<u32>) -> Step {
        let mut threads = self.threads.lock();
        let counter = &mut threads[thread as usize];
        if counter.state == PassState::Between {
            counter.pass += 1;
            counter.state = PassState::Implicit { joined: false };
        }
        let number = counter.next;
        counter.next += 1;
        let stream = self.worker.stream(thread);
        let is_applied = !self.applied.is_empty()
            && std::iter::once(stream).chain(also).all(|stream| self.is_applied_by_all(stream, number));
        Step { number, is_applied }
    }

    fn is_applied_by_all(&self, stream: u32, step: u64) -> bool {
        let work = WorkId::step(stream, step);
        self.applied.iter().all(|server| server.applied.is_applied(work) == Covered::All)
    }

    /// Whether some servers had applied a step when this process entered, and others had not.
    pub(super) fn is_applied_by_some(&self, stream: u32, step: u64) -> bool {
        let work = WorkId::step(stream, step);
        let mut applied = self.applied.iter().map(|server| server.applied.is_applied(work) != Covered::No);
        let first = applied.next().unwrap_or(false);
        applied.any(|other| other != first)
    }

    /// The number of an attempt to push a step of a group: larger than that of every earlier attempt of this process.
    pub(super) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the last step number that was taken, to be used again.
    pub(super) fn return_step(&self, thread: u32) {
        let mut threads = self.threads.lock();
        let counter = &mut threads[thread as usize];
        counter.next = counter.next.saturating_sub(1);
    }

    /// Begins a pass over a dataset. Returns its number, and that of the pass that the thread must leave first.
    pub(super) fn begin(&self, thread: u32) -> (u64, u64) {
        let mut threads = self.threads.lock();
        let counter = &mut threads[thread as usize];
        // An implicit pass, or one that ended with an error that the script caught.
        let left = counter.end();
        counter.pass += 1;
        counter.state = PassState::Explicit;
        (counter.pass, left)
    }

    /// The pass that a push has to join first: an implicit pass that has not been joined yet.
    pub(super) fn to_join(&self, thread: u32) -> Option<u64> {
        let mut threads = self.threads.lock();
        let counter = &mut threads[thread as usize];
        match &mut counter.state {
            PassState::Implicit { joined } if !*joined => {
                *joined = true;
                Some(counter.pass)
            }
            _ => None,
        }
    }

    /// Ends the pass of a thread. Returns its number, unless the servers already know that it ended.
    pub(super) fn finish(&self, thread: u32) -> Option<u64> {
        let mut threads = self.threads.lock();
        let counter = &mut threads[thread as usize];
        counter.state = PassState::Between;
        self.untold(thread, counter)
    }

    /// Ends the implicit pass of all threads; with `also_empty` also where they made no step in it.
    pub(crate) fn end_implicit(&self, also_empty: bool) -> ImplicitEnd {
        let mut threads = self.threads.lock();
        let mut end = ImplicitEnd::default();
        for (thread, counter) in (0..).zip(threads.iter_mut()) {
            let has_steps = matches!(counter.state, PassState::Implicit { .. });
            if has_steps || (also_empty && counter.state == PassState::Between) {
                counter.end();
                end.has_steps |= has_steps;
                end.left.extend(self.untold(thread, counter).map(|pass| (self.worker.stream(thread), pass)));
            }
        }
        end
    }

    /// The number of the last pass of a thread, unless the servers already know that it ended.
    fn untold(&self, thread: u32, counter: &Counter) -> Option<u64> {
        let stream = self.worker.stream(thread);
        let left = self.applied.iter().map(|server| server.left.get(&stream).copied().unwrap_or(0)).min();
        (left.unwrap_or(0) < counter.pass).then_some(counter.pass)
    }

    /// How many steps each thread has taken or skipped.
    pub(crate) fn positions(&self) -> Vec<u64> {
        self.threads.lock().iter().map(|counter| counter.next).collect()
    }

    /// Per thread: the number of steps that every server had applied when this process entered.
    pub(crate) fn applied(&self) -> Vec<u64> {
        let position =
            |stream: u32| self.applied.iter().map(|server| server.applied.position(stream)).min().unwrap_or(0);
        (0..self.worker.threads).map(|thread| position(self.worker.stream(thread))).collect()
    }

    /// Skips a whole pass that ended at these positions.
    pub(crate) fn skip_pass(&self, ends: &[u64]) {
        let mut threads = self.threads.lock();
        for (counter, &end) in threads.iter_mut().zip(ends) {
            if end > counter.next {
                counter.next = end;
            }
            counter.end();
            counter.pass += 1;
        }
    }
}
