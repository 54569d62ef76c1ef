//! GEO on the worker: it trains on copies of its own, and now and then tells the servers by how much they moved.
//!
//! ```text
//! training threads --push--> local copies; every k batches, strictly, the keys of a window --> queue (bounded)
//! exchange thread  <-- queue     d = (local - base) / N;  base += d;  server += d
//!                                local += server - base;  base = server      for dense values and rows others changed
//! ```
//!
//! All training threads of the worker share the copies, as in the embedded default, and train on while an exchange runs:
//! what comes is added to the copies, never written over them. The division by N only delays: what a window leaves unsent
//! goes with the next ones, so in steady state the servers move by the sum of the workers' progress, and the learning rate
//! is to be chosen as for async. A flush sends the rest undivided: then the servers stand at start + everybody's progress.
//!
//! Exchanges of a worker run one after another and are numbered, so a repeat is answered and not applied. If one fails, the
//! base has moved and the servers perhaps not: the error ends training on this worker.
//!
//! A worker that dies takes with it what it has learnt and not sent. After a flush between two steps there is no such
//! thing, and the servers are told the steps up to which they have everything: a successor continues there. If it died at
//! any other moment, the job returns to a checkpoint, or to the beginning.

mod local_rows;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openfleet_core::strategy::{GeoScale, GeoSettings};
use openfleet_core::{Key, WorkId};
use openfleet_table::{DenseSpec, DenseTable, PushReport, Scratch, SparseSpec, clip};
use parking_lot::{Condvar, Mutex};
use tracing::warn;

use self::local_rows::LocalRows;
use super::remote::PushReply;
use super::{Communicator, Failure, Local, Missing, Remote, Step, Worker, wait_all};
use crate::error::{Error, Result};
use crate::frame::Reader;
use crate::request::geo_flush_done::GeoFlushDone;
use crate::request::geo_positions::GeoPositions;
use crate::request::{Kind, exchange_geo};
use crate::stage::{DenseStage, SparseStage};

/// Local training, exchanged every k batches.
pub struct Geo {
    shared: Arc<Shared>,
    /// The same tables as in `shared`, for the training threads.
    local: Local,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

struct Shared {
    remote: Remote,
    settings: GeoSettings,
    local_rows: LocalRows,
    dense: Vec<Dense>,
    outbox: Mutex<Outbox>,
    /// Signals every change of the outbox.
    changed: Condvar,
}

struct Dense {
    name: String,
    local: Arc<DenseTable>,
    /// Whether it was ever pushed: frozen parameters do not travel with every window.
    trained: AtomicBool,
}

struct Outbox {
    /// Per sparse table, the keys touched since the last window closed.
    window: Vec<Touched>,
    /// Batches since then.
    batches: u64,
    queue: VecDeque<Job>,
    /// Jobs ever queued and ever done.
    queued: u64,
    done: u64,
    most_queued: usize,
    exchanges: u64,
    /// Threads in a pass.
    training: u32,
    closed: bool,
    failed: Option<Failure>,
}

/// Something for the exchange thread.
enum Job {
    /// The keys of k batches.
    Window(Vec<Touched>),
    /// Everything that is left, and the keys of fewer than k batches.
    Flush(Vec<Touched>),
}

impl Geo {
    /// On a program's tables, the same that `remote` was made with. The servers' dense values are the first ones here.
    pub fn new(
        remote: Remote,
        settings: GeoSettings,
        sparse: Vec<(String, SparseSpec)>,
        dense: Vec<(String, DenseSpec)>,
    ) -> Result<Self> {
        let base = remote.pull_dense_values()?;
        let dense = dense.into_iter().zip(&base).map(|((name, spec), values)| {
            let making = |source| Error::Table { action: "making a copy of", table: name.clone(), source };
            let table = DenseTable::new(spec).map_err(making)?;
            table.assign(values).map_err(making)?;
            Ok(Dense { name, local: Arc::new(table), trained: AtomicBool::new(false) })
        });
        let dense = dense.collect::<Result<Vec<_>>>()?;
        let local_rows = LocalRows::new(sparse)?;
        let local = dense.iter().map(|dense| (dense.name.clone(), dense.local.clone()));
        let local = Local::new(local_rows.local(), local.collect());
        let outbox = Outbox {
            window: vec![Touched::default(); local_rows.len()],
            batches: 0,
            queue: VecDeque::new(),
            queued: 0,
            done: 0,
            most_queued: 0,
            exchanges: 0,
            training: 0,
            closed: false,
            failed: None,
        };
        let shared = Arc::new(Shared {
            remote,
            settings,
            local_rows,
            dense,
            outbox: Mutex::new(outbox),
            changed: Condvar::new(),
        });
        let mut exchanger = Exchanger { shared: shared.clone(), base, next: 0, wanted: None, scratch: Scratch::new() };
        let thread = std::thread::spawn(move || {
            let shared = exchanger.shared.clone();
            // A bug here must not leave training threads waiting for ever.
            if std::panic::catch_unwind(AssertUnwindSafe(|| exchanger.run())).is_err() {
                let panicked = Error::Background { message: "it panicked".into() };
                shared.outbox.lock().failed = Some(Failure::from(&panicked));
                shared.changed.notify_all();
            }
        });
        Ok(Geo { shared, local, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until every window that is full by now has been exchanged.
    pub fn settle(&self) -> Result<()> {
        let outbox = self.shared.outbox.lock();
        let ticket = outbox.queued;
        self.shared.wait_for(outbox, ticket)
    }

    /// Exchanges so far, those of flushes included.
    pub fn exchanges(&self) -> u64 {
        self.shared.outbox.lock().exchanges
    }

    /// The most windows that ever waited in the queue.
    pub fn most_queued(&self) -> usize {
        self.shared.outbox.lock().most_queued
    }

    /// Bytes sent and received.
    pub fn traffic(&self) -> (u64, u64) {
        self.shared.remote.traffic()
    }

    fn end_thread(&self) {
        self.shared.outbox.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Geo {
    fn drop(&mut self) {
        self.end_thread();
    }
}

impl Communicator for Geo {
    /// Rows that are kept here are read here, evaluation included; others come from the servers.
    fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()> {
        self.shared.local_rows.pull(&self.shared.remote, stages, missing)
    }

    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        self.local.pull_dense(stages)
    }

    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<PushReport> {
        let report = self.local.push(work, sparse, dense)?;
        let shared = &self.shared;
        for stage in dense.iter().filter(|stage| stage.trained) {
            shared.dense[stage.table].trained.store(true, Ordering::Relaxed);
        }
        // Noted after the step: noted before, a window could leave without what the step did.
        let mut outbox = shared.outbox.lock();
        outbox.check()?;
        for stage in sparse.iter() {
            for lookup in stage.lookups.iter().filter(|lookup| lookup.trained) {
                outbox.window[lookup.table].add(stage.unique.keys());
            }
        }
        outbox.batches += 1;
        if outbox.batches == shared.settings.k_steps {
            let window = outbox.close_window();
            while outbox.queue.len() >= shared.settings.send_queue_size {
                shared.changed.wait(&mut outbox);
                outbox.check()?;
            }
            outbox.enqueue(Job::Window(window));
            outbox.most_queued = outbox.most_queued.max(outbox.queue.len());
            drop(outbox);
            shared.changed.notify_all();
        }
        Ok(report)
    }

    fn refuses_here(&self) -> bool {
        true
    }

    fn number_in_job(&self, stream: u32) -> u32 {
        self.shared.remote.worker.stream(stream)
    }

    fn next_step(&self, stream: u32) -> Result<Step> {
        Ok(self.shared.remote.streams.next(stream, None))
    }

    fn give_back_step(&self, stream: u32) {
        self.shared.remote.streams.give_back(stream);
    }

    fn begin(&self, stream: u32) -> Result<()> {
        self.shared.remote.streams.begin(stream);
        self.shared.outbox.lock().training += 1;
        Ok(())
    }

    /// The last thread of a pass flushes.
    fn finish(&self, stream: u32) -> Result<()> {
        self.shared.remote.streams.finish(stream);
        let mut outbox = self.shared.outbox.lock();
        outbox.training = outbox.training.saturating_sub(1);
        let last = outbox.training == 0;
        drop(outbox);
        if last { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<()> {
        let mut outbox = self.shared.outbox.lock();
        outbox.check()?;
        let window = outbox.close_window();
        let is_between_steps = outbox.training == 0;
        let ticket = outbox.enqueue(Job::Flush(window));
        self.shared.changed.notify_all();
        self.shared.wait_for(outbox, ticket)?;
        if is_between_steps && self.shared.settings.flush_residual {
            self.shared.report_positions()?;
        }
        Ok(())
    }

    fn finish_implicit(&self) -> Result<()> {
        let implicit = self.shared.remote.streams.implicit();
        for &thread in &implicit {
            self.shared.remote.streams.finish(thread);
        }
        if implicit.is_empty() { Ok(()) } else { self.flush() }
    }

    fn abandon(&self) {
        self.shared.remote.abandon();
    }

    fn close(&self) -> Result<()> {
        self.flush()?;
        self.end_thread();
        self.shared.remote.depart()
    }
}

impl Shared {
    /// Tells the servers that they have everything up to the steps that were taken so far.
    fn report_positions(&self) -> Result<()> {
        let positions = self.remote.streams.positions();
        let streams = (0..).map(|thread| self.remote.worker.stream(thread));
        let report_positions = GeoPositions { positions: streams.zip(positions).collect() };
        let asked = self.remote.links.iter().map(|link| link.send(&report_positions)).collect::<Result<_>>()?;
        wait_all(asked).map(drop)
    }

    /// Waits until so many jobs are done.
    fn wait_for(&self, mut outbox: parking_lot::MutexGuard<'_, Outbox>, ticket: u64) -> Result<()> {
        while outbox.done < ticket {
            outbox.check()?;
            self.changed.wait(&mut outbox);
        }
        outbox.check()
    }
}

impl Outbox {
    fn check(&self) -> Result<()> {
        match &self.failed {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(()),
        }
    }

    fn close_window(&mut self) -> Vec<Touched> {
        self.batches = 0;
        let tables = self.window.len();
        std::mem::replace(&mut self.window, vec![Touched::default(); tables])
    }

    /// Gives the number of jobs that are done when this one is.
    fn enqueue(&mut self, job: Job) -> u64 {
        self.queue.push_back(job);
        self.queued += 1;
        self.queued
    }
}

/// The exchange thread.
struct Exchanger {
    shared: Arc<Shared>,
    /// What the servers had of each dense parameter, plus what was sent since.
    base: Vec<Vec<f32>>,
    /// The number of the next exchange.
    next: u64,
    /// The ticket of somebody who waits for all that this worker has learnt: a save.
    wanted: Option<u64>,
    scratch: Scratch,
}

/// Rows of each table in one exchange of a flush: a bound on the memory that flushing a large table takes.
const FLUSHED_ROWS: usize = 1 << 18;

impl Exchanger {
    fn run(&mut self) {
        let shared = self.shared.clone();
        loop {
            let mut outbox = shared.outbox.lock();
            let job = loop {
                if let Some(job) = outbox.queue.pop_front() {
                    break job;
                }
                if outbox.closed {
                    return;
                }
                shared.changed.wait(&mut outbox);
            };
            drop(outbox);
            // There is room in the queue again.
            shared.changed.notify_all();
            let outcome = self.work(job).and_then(|()| self.send_what_is_wanted());
            let mut outbox = shared.outbox.lock();
            outbox.done += 1;
            if let Err(error) = &outcome {
                outbox.failed = Some(Failure::from(error));
            }
            drop(outbox);
            // An error reaches every training thread.
            shared.changed.notify_all();
            if outcome.is_err() {
                return;
            }
        }
    }

    /// Sends everything, if somebody waits for it, and says so.
    fn send_what_is_wanted(&mut self) -> Result<()> {
        let Some(ticket) = self.wanted else { return Ok(()) };
        if self.shared.settings.flush_residual {
            self.work(Job::Flush(Vec::new()))?;
        }
        // Told again by the exchanges above.
        self.wanted = None;
        let links = self.shared.remote.links.iter();
        wait_all(links.map(|link| link.send(&GeoFlushDone { ticket })).collect::<Result<_>>()?).map(drop)
    }

    fn work(&mut self, job: Job) -> Result<()> {
        let workers = match self.shared.settings.scale {
            GeoScale::Mean => self.shared.remote.worker.count as f32,
            GeoScale::Sum => 1.0,
        };
        match job {
            Job::Window(window) => {
                let trained = self.shared.dense.iter().map(|dense| dense.trained.load(Ordering::Relaxed)).collect();
                let keys: Vec<Vec<Key>> = window.into_iter().map(Touched::into_keys).collect();
                self.exchange(keys.iter().map(Vec::as_slice), workers, trained)
            }
            Job::Flush(window) if !self.shared.settings.flush_residual => {
                let keys: Vec<Vec<Key>> = window.into_iter().map(Touched::into_keys).collect();
                self.exchange(keys.iter().map(Vec::as_slice), workers, vec![true; self.base.len()])
            }
            // What the window touched differs from the base, and so is among the unsent.
            Job::Flush(_) => {
                let local_rows = &self.shared.local_rows;
                let keys: Vec<Vec<Key>> = (0..local_rows.len()).map(|number| local_rows.unsent(number)).collect();
                let rounds = keys.iter().map(|keys| keys.len().div_ceil(FLUSHED_ROWS)).max().unwrap_or(0).max(1);
                (0..rounds).try_for_each(|round| {
                    let part = keys.iter().map(|keys| keys.chunks(FLUSHED_ROWS).nth(round).unwrap_or_default());
                    self.exchange(part, 1.0, vec![round == 0; self.base.len()])
                })
            }
        }
    }

    /// One exchange: differences of these rows of each table, and of the dense parameters that take part.
    fn exchange<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a [Key]>,
        divisor: f32,
        takes_part: Vec<bool>,
    ) -> Result<()> {
        let shared = self.shared.clone();
        let (remote, local_rows) = (&shared.remote, &shared.local_rows);
        let sparse: Vec<SparseStage> = keys
            .enumerate()
            .map(|(number, keys)| local_rows.differences(number, keys, divisor, &mut self.scratch))
            .collect::<Result<_>>()?;
        let mut dense: Vec<DenseStage> = takes_part
            .iter()
            .enumerate()
            .map(|(table, &trained)| match trained {
                true => self.dense_difference(table, divisor),
                false => DenseStage { table, ..DenseStage::default() },
            })
            .collect();
        // Numbered in a stream of its own, after those of all training threads.
        let Worker { rank, count, threads } = remote.worker;
        let work = WorkId::step(count * threads + rank * threads, self.next);
        let payloads = remote.encode_push(work, &sparse, &dense, PushReply::Nothing);
        drop(sparse);
        let asked: Vec<_> = remote
            .links
            .iter()
            .zip(payloads)
            .map(|(link, payload)| link.send_payload(Kind::ExchangeGeo, payload))
            .collect();
        self.next += 1;
        for (server, pending) in asked.into_iter().enumerate() {
            let answer = pending.wait()?;
            let mut reader = Reader::new(answer.bytes());
            let ticket = exchange_geo::take_ticket(&mut reader)?;
            self.wanted = self.wanted.or((ticket != 0).then_some(ticket));
            for number in 0..local_rows.len() {
                let changed = exchange_geo::take_changed(&mut reader, local_rows.dim(number))?;
                local_rows.receive(number, changed.keys, changed.rows, &mut self.scratch)?;
            }
            remote.take_trained_values(server, &mut reader, &mut dense)?;
            reader.end()?;
        }
        for stage in dense.into_iter().filter(|stage| stage.trained) {
            self.receive_dense(stage)?;
        }
        shared.outbox.lock().exchanges += 1;
        Ok(())
    }

    /// The difference of a parameter to what the servers have, divided; the base moves by it. A parameter whose difference
    /// is not finite sends none: the servers would refuse it, and must not be thought to have it.
    fn dense_difference(&mut self, table: usize, divisor: f32) -> DenseStage {
        let base = &mut self.base[table];
        let mut difference: Vec<f32> = self.shared.dense[table]
            .local
            .read(|local| local.iter().zip(&*base).map(|(local, base)| (local - base) / divisor).collect());
        if !clip::is_finite(&difference) {
            warn!(
                "parameter `{}` is no longer finite on this worker: it sends no difference",
                self.shared.dense[table].name
            );
            difference.fill(0.0);
        }
        base.iter_mut().zip(&difference).for_each(|(base, difference)| *base += difference);
        DenseStage { table, values: vec![0.0; base.len()], gradient: difference, trained: true, version: 0 }
    }

    /// Adds what others did to a parameter.
    fn receive_dense(&mut self, stage: DenseStage) -> Result<()> {
        let dense = &self.shared.dense[stage.table];
        let base = std::mem::replace(&mut self.base[stage.table], stage.values);
        let server = &self.base[stage.table];
        let difference: Vec<f32> = server.iter().zip(&base).map(|(server, base)| server - base).collect();
        // Nothing new: then no training thread has to copy the parameter again.
        if difference.iter().all(|&difference| difference == 0.0) {
            return Ok(());
        }
        let error = |source| Error::Table { action: "adding to", table: dense.name.clone(), source };
        dense.local.add(&difference).map(drop).map_err(error)
    }
}

/// The keys of a window, each at least once.
#[derive(Debug, Clone, Default)]
struct Touched {
    keys: Vec<Key>,
    /// Length at which duplicates are next looked for.
    limit: usize,
}

impl Touched {
    /// Duplicates are thrown out each time the list has doubled: it stays within twice the distinct keys.
    fn add(&mut self, keys: &[Key]) {
        self.keys.extend_from_slice(keys);
        if self.keys.len() > self.limit.max(1 << 12) {
            self.sort();
            self.limit = self.keys.len() * 2;
        }
    }

    fn sort(&mut self) {
        self.keys.sort_unstable();
        self.keys.dedup();
    }

    /// Each key once, ascending.
    fn into_keys(mut self) -> Vec<Key> {
        self.sort();
        self.keys
    }
}
