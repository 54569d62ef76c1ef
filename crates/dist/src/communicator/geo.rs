//! GEO mode on the worker: it trains on local copies, and periodically sends the servers how much they have changed.
//!
//! ```text
//! training threads --push--> local copies; every k batches, strictly, the keys of a window --> queue (bounded)
//!                                between two windows, every few batches: dense values and often used rows --> queue
//! exchange thread  <-- queue     d = local - base;  base += d;  server += d
//!                                local += server - base;  base = server      for dense values and rows others changed
//! ```
//!
//! A row has a base only from its first change until its difference is sent: before and after, it is as the servers have it.
//!
//! All training threads of the worker share the copies, as in local training, and continue while an exchange runs: what arrives
//! never overwrites progress that has not been sent.
//!
//! The progress of N workers is joined in one of three ways ([`GeoScale`](openfleet_core::strategy::GeoScale)). *Average*: all
//! workers train the dense parameters on the same task, so the servers get `d / N` of them and the worker continues from the
//! servers' values; a row is trained by the workers that have its key, so rows are added undivided. *Mean*, as in PaddlePaddle:
//! `d / N` of everything, but that only delays: what one window leaves unsent is sent with the next ones, and a flush sends the
//! rest undivided. *Sum*: everything undivided. With mean and sum the servers change by the sum of the workers' progress, so choose
//! the learning rate as for async mode.
//!
//! Exchanges of a worker run one after another and are numbered, so a repeat is answered but not applied. If an exchange fails,
//! the base has changed and the servers perhaps have not: the error ends training on this worker.
//!
//! If a worker dies, the progress that it has not sent is lost. After a flush between two steps there is none, and the servers
//! are told the steps that they have: a restarted worker resumes there. If the worker died at any other moment, the job returns
//! to a checkpoint, or to the beginning.

mod exchanger;
mod local_rows;
mod rhythm;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use openfleet_core::strategy::GeoSettings;
use openfleet_core::{Key, WorkId};
use openfleet_table::{DenseSpec, DenseTable, SparseSpec};
use parking_lot::{Condvar, Mutex};

use self::exchanger::Exchanger;
use self::local_rows::LocalRows;
use self::rhythm::Rhythm;
use super::{Communicator, Failure, Local, Missing, PullInFlight, Pushed, Remote, Step, wait_all};
use crate::error::{Error, Result};
use crate::request::geo_positions::GeoPositions;
use crate::stage::{DenseStage, SparseStage};

/// The communicator of geo mode.
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
    /// Notified at every change of the outbox.
    changed: Condvar,
}

struct Dense {
    name: String,
    local: Arc<DenseTable>,
    /// Whether it was ever pushed: frozen parameters are not sent with every window.
    trained: AtomicBool,
}

struct Outbox {
    /// Batches since the last window closed.
    batches: u64,
    /// When the last window closed.
    closed_at: Instant,
    rhythm: Rhythm,
    /// Batches since dense parameters were last exchanged.
    dense_batches: u64,
    /// A dense exchange is queued or running.
    exchanges_dense: bool,
    queue: VecDeque<Job>,
    /// Numbers of jobs queued and done since the start.
    queued: u64,
    done: u64,
    most_queued: usize,
    exchanges: u64,
    /// Number of threads in a pass.
    training: u32,
    closed: bool,
    failed: Option<Failure>,
}

/// A job for the exchange thread.
enum Job {
    /// Dense parameters and, per sparse table, the keys of often used rows.
    Dense(Vec<Vec<Key>>),
    /// The keys of k batches of each table, and how long the batches took.
    Window(Vec<Vec<Key>>, Duration),
    /// All unsent differences; also the keys of an incomplete window.
    Flush(Vec<Vec<Key>>),
}

impl Geo {
    /// Geo mode on a program's tables, which must be those that `remote` was created with. The copies start with the servers'
    /// dense values.
    pub fn new(
        remote: Remote,
        settings: GeoSettings,
        sparse: Vec<(String, SparseSpec)>,
        dense: Vec<(String, DenseSpec)>,
    ) -> Result<Self> {
        // A row keeps the difference between what was sent and what the worker has, so it must be exact.
        let remote = remote.with_wide_rows();
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
            batches: 0,
            closed_at: Instant::now(),
            rhythm: Rhythm::new(&settings),
            dense_batches: 0,
            exchanges_dense: false,
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
        let mut exchanger = Exchanger::new(shared.clone(), base);
        let thread = std::thread::spawn(move || {
            let shared = exchanger.shared().clone();
            // A panic must not leave training threads waiting forever.
            if std::panic::catch_unwind(AssertUnwindSafe(|| exchanger.run())).is_err() {
                let panicked = Error::Background { message: "it panicked".into() };
                shared.outbox.lock().failed = Some(Failure::from(&panicked));
                shared.changed.notify_all();
            }
        });
        Ok(Geo { shared, local, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until every window that is full at the time of the call has been exchanged.
    pub fn settle(&self) -> Result<()> {
        let outbox = self.shared.outbox.lock();
        let ticket = outbox.queued;
        self.shared.wait_for(outbox, ticket)
    }

    /// Number of exchanges so far, including those of flushes.
    pub fn exchanges(&self) -> u64 {
        self.shared.outbox.lock().exchanges
    }

    /// The maximum number of windows that were ever in the queue.
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
    /// Rows with a local copy are read from it, also for evaluation; others are read from the servers.
    fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()> {
        self.shared.local_rows.pull(&self.shared.remote, stages, missing)
    }

    /// Only rows without a copy are requested, and copies are read when they are needed: no row lacks a gradient because of it.
    fn overlaps_pulls(&self) -> bool {
        true
    }

    /// The reply makes copies of the rows, from which a later pull reads.
    fn begin_pull(&self, stages: &[SparseStage]) -> Result<Option<PullInFlight>> {
        self.shared.local_rows.request(&self.shared.remote, stages).map(|()| None)
    }

    /// Rows that this worker has copies of are on the servers, and keep their values.
    fn put_rows(&self, table: usize, keys: &[Key], rows: &[f32]) -> Result<()> {
        self.shared.remote.put_rows(table, keys, rows)
    }

    fn keys(&self, table: usize) -> Result<Vec<Key>> {
        self.shared.remote.keys(table)
    }

    fn set_rate_factor(&self, factor: f32) {
        self.local.set_rate_factor(factor);
    }

    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        self.local.pull_dense(stages)
    }

    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<Pushed> {
        let shared = &self.shared;
        let report = self.local.push(work, sparse, dense)?;
        for stage in dense.iter().filter(|stage| stage.trained) {
            shared.dense[stage.table].trained.store(true, Ordering::Relaxed);
        }
        let mut outbox = shared.outbox.lock();
        outbox.check()?;
        outbox.batches += 1;
        outbox.dense_batches += 1;
        if outbox.rhythm.is_window_full(outbox.batches) {
            let took = outbox.closed_at.elapsed();
            let window = shared.close_window(&mut outbox);
            while outbox.queue.len() >= shared.settings.send_queue_size {
                shared.changed.wait(&mut outbox);
                outbox.check()?;
            }
            outbox.enqueue(Job::Window(window, took));
            outbox.most_queued = outbox.most_queued.max(outbox.queue.len());
            drop(outbox);
            shared.changed.notify_all();
        } else if !outbox.exchanges_dense && outbox.rhythm.is_dense_due(outbox.dense_batches, Instant::now()) {
            outbox.dense_batches = 0;
            outbox.exchanges_dense = true;
            outbox.enqueue(Job::Dense(shared.local_rows.take_often_used()));
            drop(outbox);
            shared.changed.notify_all();
        }
        Ok(report)
    }

    fn counts_refusals(&self) -> bool {
        true
    }

    fn job_stream(&self, stream: u32) -> u32 {
        self.shared.remote.worker.stream(stream)
    }

    fn next_step(&self, stream: u32) -> Result<Step> {
        Ok(self.shared.remote.streams.next(stream, None))
    }

    fn return_step(&self, stream: u32) {
        self.shared.remote.streams.return_step(stream);
    }

    fn begin(&self, stream: u32) -> Result<()> {
        self.shared.remote.streams.begin(stream);
        self.shared.outbox.lock().training += 1;
        Ok(())
    }

    /// The last thread to finish its pass flushes.
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
        let window = self.shared.close_window(&mut outbox);
        let is_between_steps = outbox.training == 0;
        let ticket = outbox.enqueue(Job::Flush(window));
        self.shared.changed.notify_all();
        self.shared.wait_for(outbox, ticket)?;
        if is_between_steps && self.shared.settings.flush_residual {
            self.shared.report_positions()?;
        }
        Ok(())
    }

    fn finish_implicit(&self, also_empty: bool) -> Result<()> {
        let end = self.shared.remote.streams.end_implicit(also_empty);
        if end.has_steps { self.flush() } else { Ok(()) }
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
    /// Tells the servers that they have everything up to the current steps.
    fn report_positions(&self) -> Result<()> {
        let positions = self.remote.streams.positions();
        let streams = (0..).map(|thread| self.remote.worker.stream(thread));
        let report_positions = GeoPositions { positions: streams.zip(positions).collect() };
        let asked = self.remote.links.iter().map(|link| link.send(&report_positions)).collect::<Result<_>>()?;
        wait_all(asked).map(drop)
    }

    /// Begins a new window. Returns the keys of each table that were used in the last one.
    fn close_window(&self, outbox: &mut Outbox) -> Vec<Vec<Key>> {
        outbox.batches = 0;
        outbox.closed_at = Instant::now();
        // The exchange of a window includes the dense parameters.
        outbox.dense_batches = 0;
        self.local_rows.close_window()
    }

    /// Waits until `ticket` jobs are done.
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

    /// Returns the number of jobs that are done when this one is.
    fn enqueue(&mut self, job: Job) -> u64 {
        self.queue.push_back(job);
        self.queued += 1;
        self.queued
    }
}
