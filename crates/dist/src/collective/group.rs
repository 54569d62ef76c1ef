//! The ranks of a collective job, as one of them uses them: operations in the order that all ranks agree on.
//!
//! One thread per process runs everything on the transport, in the order of the calls, so that gradients are reduced while
//! others are still computed. After an error every further call fails with the same error: ranks that are no longer in step
//! cannot continue.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::algorithms::{self, Element};
use super::call::{self, Call, Turn};
use super::progress::Progress;
use super::transport::Transport;
use crate::communicator::Step;
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::server::Reduce;

/// What a rank does in the steps of other ranks when it has no data of its own.
pub trait StepOfOthers: Send + Sync {
    /// Takes part in one step without data, and applies its update. `calls` is what every rank called.
    fn take_part(&self, calls: Vec<Call>, averages: bool) -> Result<()>;
}

/// What lets a rank that has not trained a program take part in its steps.
pub trait Standby: Send + Sync {
    /// Registers the program with [`RankGroup::register`], if that is possible.
    fn register(&self, program: u64);
}

/// One rank of a collective job.
pub struct RankGroup {
    rank: usize,
    size: usize,
    transport: Arc<dyn Transport>,
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The first error.
    failure: Arc<Mutex<Option<Error>>>,
    /// What takes part in the steps of other ranks, by program.
    programs: Mutex<HashMap<u64, Vec<Weak<dyn StepOfOthers>>>>,
    /// Registers a program that this rank has not trained, when other ranks train it.
    standby: Mutex<Option<Weak<dyn Standby>>>,
    /// Locked while an operation runs: the operations of one rank follow each other.
    running: Mutex<()>,
    departed: AtomicBool,
    progress: Mutex<Progress>,
}

type Job = Box<dyn FnOnce(&dyn Transport) + Send>;

/// The result of an operation that another thread runs.
pub struct Pending<T>(mpsc::Receiver<Result<T>>);

impl<T> Pending<T> {
    /// Waits for the result.
    pub fn wait(self) -> Result<T> {
        let gone = Error::Background { message: "the thread of the collective operations has ended".into() };
        self.0.recv().unwrap_or(Err(gone))
    }
}

impl RankGroup {
    /// A rank with its transport.
    pub fn new(transport: impl Transport + 'static) -> Self {
        let transport: Arc<dyn Transport> = Arc::new(transport);
        let (jobs, inbox) = mpsc::channel::<Job>();
        let owned = transport.clone();
        let run = move || inbox.into_iter().for_each(|job| job(owned.as_ref()));
        // Without a thread every operation fails.
        let thread = spawn(run).ok();
        RankGroup::of(transport, thread.is_some().then_some(jobs), thread)
    }

    /// A rank whose transport is opened by the thread that uses it, because an MPI library expects its first and its last call
    /// from the same thread.
    ///
    /// # Errors
    /// The error of `open`, or if no thread can be started.
    pub fn open<T: Transport + 'static>(open: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (opened, opening) = mpsc::sync_channel::<Result<Arc<dyn Transport>>>(1);
        let run = move || {
            let transport: Arc<dyn Transport> = match open() {
                Ok(transport) => Arc::new(transport),
                Err(error) => return drop(opened.send(Err(error))),
            };
            // The caller waits for it.
            let _ = opened.send(Ok(transport.clone()));
            inbox.into_iter().for_each(|job| job(transport.as_ref()));
        };
        let thread = spawn(run).map_err(|source| Error::Background { message: source.to_string() })?;
        let transport = Pending(opening).wait()?;
        Ok(RankGroup::of(transport, Some(jobs), Some(thread)))
    }

    fn of(transport: Arc<dyn Transport>, jobs: Option<mpsc::Sender<Job>>, thread: Option<JoinHandle<()>>) -> Self {
        RankGroup {
            rank: transport.rank(),
            size: transport.size(),
            transport,
            jobs: Mutex::new(jobs),
            thread: Mutex::new(thread),
            failure: Arc::default(),
            programs: Mutex::default(),
            standby: Mutex::default(),
            running: Mutex::default(),
            departed: AtomicBool::new(false),
            progress: Mutex::default(),
        }
    }

    /// The rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Sets what takes part in the steps of other ranks when this rank has no data for a program.
    pub fn register(&self, program: u64, steps: Weak<dyn StepOfOthers>) {
        let mut programs = self.programs.lock();
        let known = programs.entry(program).or_default();
        known.retain(|steps| steps.strong_count() > 0);
        known.push(steps);
    }

    /// Sets what registers a program that this rank has not trained, when other ranks train it.
    pub fn set_standby(&self, standby: Weak<dyn Standby>) {
        *self.standby.lock() = Some(standby);
    }

    /// Whether this rank was restarted and has not yet reached the end of the batches that its checkpoint includes. What its
    /// script saves, loads and shrinks until then was done before the restart.
    pub fn replays(&self) -> bool {
        self.progress.lock().replays()
    }

    /// Batches of a program that each rank has trained, in rank order.
    pub fn batches(&self, program: u64) -> Vec<u64> {
        self.progress.lock().applied(program, self.size)
    }

    /// The values of a checkpoint were loaded that includes as many batches of each rank: they are skipped.
    pub fn resume_at(&self, program: u64, batches: &[u64]) {
        self.progress.lock().resume(program, self.rank, self.size, batches);
    }

    /// Why a restarted job cannot return to a checkpoint of this program that this rank saves now; `None` if it can.
    /// `averages`: ranks train alone between two averages of their parameters.
    pub fn obstacle_to_return(&self, program: u64, averages: bool) -> Option<&'static str> {
        self.progress.lock().obstacle(program, self.rank, averages)
    }

    /// This rank begins its next batch of a program.
    pub(crate) fn begin_batch(&self, program: u64) -> Step {
        self.progress.lock().begin(program, self.size)
    }

    /// The last batch that was begun has failed before it changed anything.
    pub(crate) fn take_back_batch(&self, program: u64) {
        self.progress.lock().take_back(program, self.size);
    }

    /// Each rank's updates of as many more batches are applied.
    pub(crate) fn apply_batches(&self, program: u64, more: &[u64]) {
        self.progress.lock().apply(program, more);
    }

    /// This rank cannot continue: all operations of all ranks fail, with this reason, unless every rank finds the reason itself.
    pub fn fail(&self, reason: &str) {
        let lost = Error::RankLost { rank: self.rank as u32, reason: reason.to_owned() };
        let is_known_to_all = self.failure.lock().get_or_insert(lost).is_found_by_every_rank();
        if !is_known_to_all {
            self.transport.abort(reason);
        }
    }

    /// Runs work on the transport, after everything that was submitted before.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Transport) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (done, pending) = mpsc::sync_channel(1);
        let failure = self.failure.clone();
        let job: Job = Box::new(move |transport| {
            let known = failure.lock().as_ref().map(Error::repeated);
            let outcome = known.map_or_else(|| work(transport), Err);
            if let Err(error) = &outcome {
                failure.lock().get_or_insert_with(|| error.repeated());
            }
            // Nobody waits for the result of an operation whose caller has failed.
            let _ = done.send(outcome);
        });
        if let Some(jobs) = self.jobs.lock().as_ref() {
            // If the thread has ended, waiting for the result fails.
            let _ = jobs.send(job);
        }
        Pending(pending)
    }

    /// Tells the other ranks what this one is about to do, and learns what all of them do next.
    pub(crate) fn vote(&self, call: Call) -> Pending<Turn> {
        self.submit(move |transport| {
            let mut calls = vec![call; transport.size()];
            algorithms::all_gather(transport, bytemuck::bytes_of(&call), bytemuck::cast_slice_mut(&mut calls))?;
            Turn::of(transport.rank(), &calls)
        })
    }

    /// Waits until it is this call's turn; until then takes part in the steps of the others. Returns every rank's call.
    pub(crate) fn agree(&self, call: Call) -> Result<Vec<Call>> {
        loop {
            match self.vote(call).wait()? {
                Turn::Own { calls } => return Ok(calls),
                Turn::Others { program, averages, calls } => self.take_part(program, averages, calls)?,
                Turn::Again => {}
            }
        }
    }

    fn take_part(&self, program: u64, averages: bool, calls: Vec<Call>) -> Result<()> {
        let known = || -> Option<Arc<dyn StepOfOthers>> {
            self.programs.lock().get(&program)?.iter().rev().find_map(Weak::upgrade)
        };
        let standby = || self.standby.lock().as_ref().and_then(Weak::upgrade);
        let steps = known().or_else(|| {
            standby()?.register(program);
            known()
        });
        let Some(steps) = steps else {
            let reason = format!(
                "it has never trained program {program:016x}, which the others are training, so it cannot take part \
                 without data"
            );
            self.fail(&reason);
            return Err(Error::RankLost { rank: self.rank as u32, reason });
        };
        steps.take_part(calls, averages)
    }

    /// Waits until every rank that has not departed has called it.
    pub fn barrier(&self) -> Result<()> {
        let _running = self.running.lock();
        self.agree(Call::barrier()).map(drop)
    }

    /// Reduces the arrays of all ranks, element by element; every rank gets the same bits. All ranks pass the same number of
    /// elements; a rank that has departed contributes nothing.
    pub fn all_reduce<T: Element>(&self, op: Reduce, values: &mut [T]) -> Result<()> {
        let _running = self.running.lock();
        let calls = self.agree(Call::all_reduce(detail::<T>(op), values.len()))?;
        let mut mine = values.to_vec();
        let reduced = self.submit(move |transport| {
            algorithms::all_reduce(transport, op, &mut mine)?;
            Ok(mine)
        });
        values.copy_from_slice(&reduced.wait()?);
        if op == Reduce::Mean {
            T::divide(values, call::present(&calls));
        }
        Ok(())
    }

    /// Reduces the arrays of all ranks, of which each rank gets its own part ([`algorithms::part`]).
    pub fn reduce_scatter<T: Element>(&self, op: Reduce, values: &[T]) -> Result<Vec<T>> {
        let _running = self.running.lock();
        let calls = self.agree(Call::reduce_scatter(detail::<T>(op), values.len()))?;
        let mut values = values.to_vec();
        let reduced = self.submit(move |transport| algorithms::reduce_scatter(transport, op, &mut values));
        let mut own = reduced.wait()?;
        if op == Reduce::Mean {
            T::divide(&mut own, call::present(&calls));
        }
        Ok(own)
    }

    /// Copies the bytes of `root` to all ranks. All ranks pass the same number of bytes.
    pub fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<()> {
        let _running = self.running.lock();
        if root >= self.size {
            return Err(Error::UnknownWorker { worker: root as u32, count: self.size as u32 });
        }
        self.agree(Call::broadcast(root as u32, bytes.len()))?;
        bytes.copy_from_slice(&self.submit_broadcast(root, bytes.to_vec()).wait()?);
        Ok(())
    }

    /// A broadcast that all ranks have agreed on.
    pub(crate) fn submit_broadcast(&self, root: usize, mut bytes: Vec<u8>) -> Pending<Vec<u8>> {
        self.submit(move |transport| {
            algorithms::broadcast(transport, root, &mut bytes)?;
            Ok(bytes)
        })
    }

    /// Gathers the bytes of all ranks, whose lengths may differ, in rank order.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let _running = self.running.lock();
        let calls = self.agree(Call::all_gather(bytes.len()))?;
        let lengths: Vec<usize> = calls.iter().map(Call::length).collect();
        let mut mine = Payload::zeros(bytes.len());
        mine.bytes_mut().copy_from_slice(bytes);
        let all = self.submit_gather(mine, lengths.clone()).wait()?;
        let mut rest = all.bytes();
        let blocks = lengths.iter().map(|&length| {
            let (block, after) = rest.split_at(length);
            rest = after;
            block.to_vec()
        });
        Ok(blocks.collect())
    }

    /// A gather of blocks whose lengths all ranks know: the blocks, one after the other.
    pub(crate) fn submit_gather(&self, mine: Payload, lengths: Vec<usize>) -> Pending<Payload> {
        self.submit(move |transport| {
            let mut all = Payload::zeros(lengths.iter().sum());
            algorithms::all_gather_varied(transport, mine.bytes(), &lengths, all.bytes_mut())?;
            Ok(all)
        })
    }

    /// Sends one block of bytes to every rank, in rank order, and returns the blocks that all ranks have for this one.
    pub fn all_to_all(&self, parts: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
        let lengths: Vec<u64> = parts.iter().map(|part| part.len() as u64).collect();
        let all = self.all_gather(bytemuck::cast_slice(&lengths))?;
        let width = size_of::<u64>();
        let of = |row: &[u8]| -> usize {
            // A rank that has departed sends nothing.
            let bytes = row.get(self.rank * width..(self.rank + 1) * width);
            bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes) as usize
        };
        let incoming: Vec<usize> = all.iter().map(|row| of(row)).collect();
        let (rank, size, parts) = (self.rank, self.size, parts.to_vec());
        let _running = self.running.lock();
        let exchanged = self.submit(move |transport| {
            let mut received: Vec<Vec<u8>> = incoming.iter().map(|&length| vec![0; length]).collect();
            received[rank].copy_from_slice(&parts[rank]);
            for distance in 1..size {
                let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
                transport.exchange(to, &parts[to], from, &mut received[from])?;
            }
            Ok(received)
        });
        exchanged.wait()
    }

    /// This rank has nothing more to do. Takes part in what the others still do, and returns when all of them depart.
    /// Idempotent.
    pub fn depart(&self) -> Result<()> {
        if self.departed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let _running = self.running.lock();
        loop {
            let calls = self.agree(Call::depart())?;
            if call::all_depart(&calls) {
                break;
            }
            if let Some(other) = call::of_others(&calls) {
                self.take_part_in(other, &calls)?;
            }
        }
        self.submit(|transport| {
            transport.close();
            Ok(())
        })
        .wait()
    }

    /// Takes part in an operation of the others without contributing anything.
    fn take_part_in(&self, other: Call, calls: &[Call]) -> Result<()> {
        let lengths: Vec<usize> = calls.iter().map(Call::length).collect();
        match other.participation() {
            call::Participation::Nothing => Ok(()),
            call::Participation::Gather => self.submit_gather(Payload::new(), lengths).wait().map(drop),
            call::Participation::Broadcast { root } => {
                self.submit_broadcast(root, vec![0; other.length()]).wait().map(drop)
            }
            call::Participation::Reduce { detail, scatters } => {
                let length = other.length();
                let reduced = self.submit(move |transport| match detail >> 8 {
                    f32::CODE => reduce_nothing::<f32>(transport, detail, length, scatters),
                    f64::CODE => reduce_nothing::<f64>(transport, detail, length, scatters),
                    _ => reduce_nothing::<i64>(transport, detail, length, scatters),
                });
                reduced.wait()
            }
        }
    }
}

impl Drop for RankGroup {
    fn drop(&mut self) {
        if !self.departed.load(Ordering::SeqCst) && self.size > 1 {
            self.transport.abandon("its process has left the job without departing");
        }
        self.jobs.lock().take();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

fn spawn(run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("openfleet-ranks".into()).spawn(run)
}

/// Operation and type of a reduction, as ranks compare them.
fn detail<T: Element>(op: Reduce) -> u32 {
    op as u32 | T::CODE << 8
}

/// Takes part in a reduction with numbers that change nothing.
fn reduce_nothing<T: Element>(transport: &dyn Transport, detail: u32, length: usize, scatters: bool) -> Result<()> {
    let op = Reduce::from_number(detail & 0xff)?;
    let mut nothing = vec![T::neutral(op); length];
    match scatters {
        true => algorithms::reduce_scatter(transport, op, &mut nothing).map(drop),
        false => algorithms::all_reduce(transport, op, &mut nothing),
    }
}
