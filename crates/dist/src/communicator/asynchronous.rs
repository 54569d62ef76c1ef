//! Async mode on the worker: gradients are sent through a bounded queue, and dense values are fetched independently.
//!
//! ```text
//! training threads --push--> queue (bounded: a full one makes them wait) --sender--> servers
//!                  <--pull-- latest dense values                        <--receiver--
//! ```
//!
//! The sender merges up to `max_gradients` consecutive pushes of a stream into their sum, and waits up to `wait_ms` for an
//! incomplete merge to fill. With an independent receiver, dense values are fetched each time `min_sent` gradients have been
//! sent. Without one, the reply to a push carries the new values and its thread waits for them, so one worker with one thread
//! and no merging trains exactly as in one process. Rows are pulled fresh for every batch.
//!
//! If every gradient is sent unmerged and followed by a fetch, a thread stays close to what it has sent. It never computes
//! while [`AHEAD`] or more of its own gradients are missing from its values: one gradient in flight keeps both the thread and
//! the servers busy, and a longer queue would only add delay (with servers slower than workers and small batches, so much that
//! the model learns nothing). The thread also gives its last gradient time to arrive before it begins the next batch, at most a
//! share of the time that the last batch took ([`WAITING_SHARE`]). With fast servers, only the other workers' gradients are
//! then missing, which wins back half of the AUC that two workers otherwise lose. With slow servers, the cost is at most that
//! share.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openfleet_core::WorkId;
use openfleet_core::strategy::{AsyncSettings, DenseReceive};
use openfleet_table::aggregate::{DenseMean, SparseMean, SparsePart};
use parking_lot::{Condvar, Mutex};

use super::remote::{HeldValues, PushReply, Remote, wait_all};
use super::{Communicator, Failure, Missing, Pushed, Step};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::gradients::{Counts, Head, PushEncoder, PushView, PushedStage};
use crate::request::Kind;
use crate::stage::{DenseStage, SparseStage};

/// A thread waits while this many of its gradients are missing from its values. One may be in flight while the thread computes.
const AHEAD: u64 = 2;

/// How long a thread waits at most for its gradient to arrive, as a share of the time of a batch.
const WAITING_SHARE: f64 = 0.125;

/// The communicator of async mode.
pub struct Async {
    shared: Arc<Shared>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

struct Shared {
    remote: Remote,
    settings: AsyncSettings,
    outbox: Mutex<Outbox>,
    /// Notified at every change of the outbox.
    changed: Condvar,
    /// Dense values as last received, and their version.
    latest: Mutex<Latest>,
}

#[derive(Default)]
struct Outbox {
    queue: VecDeque<Item>,
    /// Number of pushes in flight.
    sending: usize,
    /// Gradients sent since dense values were last fetched.
    sent: u64,
    /// Forces a fetch even if few gradients were sent. It gets exact values instead of rounded differences.
    fetch_now: bool,
    /// Number of fetches begun.
    begun: u64,
    /// Number of the last completed fetch, counted from 1.
    completed: u64,
    /// Per stream: the first step without a reply from the servers.
    answered: HashMap<u32, u64>,
    /// Per stream: `answered` at the time when the latest dense values were requested. The values contain all earlier steps.
    arrived: HashMap<u32, u64>,
    most_queued: usize,
    closed: bool,
    failed: Option<Failure>,
    /// When the last push of each stream returned.
    pushed: HashMap<u32, Instant>,
}

/// One push, encoded once per server.
struct Item {
    work: WorkId,
    payloads: Vec<Payload>,
    /// The tables and parameters that it changes: pushes of another program are not merged with it.
    tables: Vec<usize>,
    /// Some servers have applied the step and others have not. Such a push is never merged: a server that has applied a part of
    /// a merged push cannot take that part out of the sum.
    alone: bool,
}

#[derive(Default)]
struct Latest {
    version: u64,
    values: Vec<Vec<f32>>,
}

impl Async {
    /// Async mode on a program's tables. Starts the sender and receiver threads if dense values are received independently.
    pub fn new(remote: Remote, settings: AsyncSettings) -> Self {
        let shared = Arc::new(Shared {
            remote,
            settings,
            outbox: Mutex::default(),
            changed: Condvar::new(),
            latest: Mutex::default(),
        });
        let mut threads = Vec::new();
        if let DenseReceive::Independent { min_sent } = settings.receive {
            let sender = shared.clone();
            threads.push(std::thread::spawn(move || sender.guard(|| sender.send_all())));
            let receiver = shared.clone();
            threads.push(std::thread::spawn(move || receiver.guard(|| receiver.receive_all(min_sent))));
        }
        Async { shared, threads: Mutex::new(threads) }
    }

    /// The maximum number of pushes that were ever in the queue.
    pub fn most_queued(&self) -> usize {
        self.shared.outbox.lock().most_queued
    }

    /// Bytes sent and received.
    pub fn traffic(&self) -> (u64, u64) {
        self.shared.remote.traffic()
    }

    fn end_threads(&self) {
        self.shared.outbox.lock().closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Async {
    fn drop(&mut self) {
        self.end_threads();
    }
}

impl Communicator for Async {
    fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()> {
        self.shared.remote.pull_sparse(stages, missing)
    }

    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        let version = self.shared.latest.lock().version + 1;
        if stages.iter().any(|stage| stage.version == 0) {
            // These values are newer than the latest that were received.
            self.shared.remote.pull_dense(stages)?;
            stages.iter_mut().for_each(|stage| stage.version = version);
        }
        let latest = self.shared.latest.lock();
        for stage in stages.iter_mut().filter(|stage| stage.version <= latest.version) {
            stage.values.copy_from_slice(&latest.values[stage.table]);
            stage.version = latest.version + 1;
        }
        Ok(())
    }

    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<Pushed> {
        let shared = &self.shared;
        let (stream, next) = (shared.remote.worker.stream(work.stream), work.first_step);
        let patience = {
            let mut outbox = shared.outbox.lock();
            // All values contain what was applied before this process started.
            outbox.arrived.entry(stream).or_insert(next);
            let pushed = outbox.pushed.get(&stream);
            pushed.map_or(Duration::ZERO, |pushed| pushed.elapsed().mul_f64(WAITING_SHARE))
        };
        let work = WorkId::step(stream, next);
        let waits = shared.settings.receive == DenseReceive::AfterSend;
        let payloads =
            shared.remote.encode_push(work, sparse, dense, if waits { PushReply::Values } else { PushReply::Nothing });
        if waits && shared.settings.merge.max_gradients == 1 {
            shared.send_and_take(payloads, dense)?;
            return Ok(Pushed::default());
        }
        let alone = shared.remote.streams.is_applied_by_some(stream, next);
        let item = Item { work, payloads, tables: tables_of(sparse, dense), alone };
        let mut outbox = shared.outbox.lock();
        shared.check(&outbox)?;
        if waits {
            // There is no sender thread. The push that completes a merge sends it, and so does a push that finds the queue
            // full, because no other thread would empty it.
            let own = outbox.queue.iter().filter(|item| item.work.stream == stream).count() + 1;
            let most = shared.settings.merge.max_gradients;
            if !item.alone && own < most && outbox.queue.len() < shared.settings.send_queue_size {
                outbox.queue.push_back(item);
                outbox.most_queued = outbox.most_queued.max(outbox.queue.len());
                return Ok(Pushed::default());
            }
            let mut merged = take_mergeable(&mut outbox.queue, stream, most);
            drop(outbox);
            if merged.last().is_some_and(|last| !last.precedes(&item)) {
                shared.send(merge(std::mem::take(&mut merged))?)?;
            }
            merged.push(item);
            shared.send_and_take(merge(merged)?, dense)?;
            return Ok(Pushed::default());
        }
        while outbox.queue.len() >= shared.settings.send_queue_size {
            shared.changed.wait(&mut outbox);
            shared.check(&outbox)?;
        }
        outbox.queue.push_back(item);
        outbox.most_queued = outbox.most_queued.max(outbox.queue.len());
        shared.changed.notify_all();
        if shared.settings.merge.max_gradients == 1
            && shared.settings.receive == (DenseReceive::Independent { min_sent: 1 })
        {
            let deadline = Instant::now() + patience;
            loop {
                let missing = (next + 1).saturating_sub(outbox.arrived.get(&stream).copied().unwrap_or(0));
                if missing == 0 {
                    break;
                }
                if missing >= AHEAD {
                    shared.changed.wait(&mut outbox);
                } else if shared.changed.wait_until(&mut outbox, deadline).timed_out() {
                    break;
                }
                shared.check(&outbox)?;
            }
            outbox.pushed.insert(stream, Instant::now());
        }
        Ok(Pushed::default())
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
        Ok(())
    }

    fn finish(&self, stream: u32) -> Result<()> {
        self.shared.remote.streams.finish(stream);
        self.flush()
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

    fn flush(&self) -> Result<()> {
        let shared = &self.shared;
        if shared.settings.receive == DenseReceive::AfterSend {
            loop {
                let mut outbox = shared.outbox.lock();
                let Some(stream) = outbox.queue.front().map(|item| item.work.stream) else { break };
                let merged = take_mergeable(&mut outbox.queue, stream, shared.settings.merge.max_gradients);
                drop(outbox);
                shared.changed.notify_all();
                shared.send(merge(merged)?)?;
            }
            // A thread's copy has the values that its own pushes returned. The next batch, or an evaluation, must see the
            // pushes of all threads.
            let values = shared.remote.pull_dense_values()?;
            let mut latest = shared.latest.lock();
            *latest = Latest { version: latest.version + 1, values };
            return Ok(());
        }
        let mut outbox = shared.outbox.lock();
        while !outbox.queue.is_empty() || outbox.sending > 0 {
            shared.check(&outbox)?;
            shared.changed.wait(&mut outbox);
        }
        shared.check(&outbox)?;
        // An evaluation that follows must see everything that was pushed.
        outbox.fetch_now = true;
        // A fetch in flight may have been answered before the last push was.
        let wanted = outbox.begun + 1;
        shared.changed.notify_all();
        while outbox.completed < wanted {
            shared.check(&outbox)?;
            shared.changed.wait(&mut outbox);
        }
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.flush()?;
        self.end_threads();
        self.shared.remote.depart()
    }
}

impl Shared {
    fn check(&self, outbox: &Outbox) -> Result<()> {
        match &outbox.failed {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(()),
        }
    }

    /// Runs a background thread; passes its error on to every training thread.
    fn guard(&self, run: impl FnOnce() -> Result<()>) {
        if let Err(error) = run() {
            self.outbox.lock().failed = Some(Failure::from(&error));
            self.changed.notify_all();
        }
    }

    fn send(&self, payloads: Vec<Payload>) -> Result<Vec<Payload>> {
        let links = self.remote.links.iter();
        wait_all(links.zip(payloads).map(|(link, payload)| link.send_payload(Kind::Push, payload)).collect())
    }

    fn send_and_take(&self, payloads: Vec<Payload>, dense: &mut [DenseStage]) -> Result<()> {
        for (server, answer) in self.send(payloads)?.iter().enumerate() {
            self.remote.take_pushed_values(server, answer, dense)?;
        }
        Ok(())
    }

    fn send_all(&self) -> Result<()> {
        let most = self.settings.merge.max_gradients;
        let wait = Duration::from_millis(self.settings.merge.wait_ms);
        loop {
            let mut outbox = self.outbox.lock();
            let stream = loop {
                if let Some(item) = outbox.queue.front() {
                    break item.work.stream;
                }
                if outbox.closed {
                    return Ok(());
                }
                self.changed.wait(&mut outbox);
            };
            let deadline = Instant::now() + wait;
            while most > 1
                && outbox.queue.iter().filter(|item| item.work.stream == stream).count() < most
                && outbox.queue.len() < self.settings.send_queue_size
                && !outbox.closed
            {
                if self.changed.wait_until(&mut outbox, deadline).timed_out() {
                    break;
                }
            }
            let merged = take_mergeable(&mut outbox.queue, stream, most);
            let count = merged.len() as u64;
            let last_step = merged.last().map_or(0, |item| item.work.last_step);
            outbox.sending += 1;
            drop(outbox);
            self.changed.notify_all();
            let sent = merge(merged).and_then(|payloads| self.send(payloads));
            let mut outbox = self.outbox.lock();
            outbox.sending -= 1;
            outbox.sent += count;
            match &sent {
                Ok(_) => drop(outbox.answered.insert(stream, last_step + 1)),
                // Set it before the lock is released: a thread that waits for the last push must not think that it succeeded.
                Err(error) => outbox.failed = Some(Failure::from(error)),
            }
            drop(outbox);
            self.changed.notify_all();
            sent?;
        }
    }

    fn receive_all(&self, min_sent: u64) -> Result<()> {
        let mut held = HeldValues::default();
        loop {
            let mut outbox = self.outbox.lock();
            while outbox.sent < min_sent && !outbox.fetch_now {
                if outbox.closed {
                    return Ok(());
                }
                self.changed.wait(&mut outbox);
            }
            outbox.sent = 0;
            outbox.begun += 1;
            if std::mem::take(&mut outbox.fetch_now) {
                // Differences are rounded, but an evaluation after a flush must see what would be saved.
                held = HeldValues::default();
            }
            let contained = outbox.answered.clone();
            drop(outbox);
            self.remote.pull_changes(&mut held)?;
            let mut latest = self.latest.lock();
            latest.values.clone_from(&held.values);
            latest.version += 1;
            drop(latest);
            let mut outbox = self.outbox.lock();
            outbox.completed = outbox.begun;
            outbox.arrived = contained;
            drop(outbox);
            self.changed.notify_all();
        }
    }
}

impl Item {
    /// Whether `next` is the following step and can be merged with this one.
    fn precedes(&self, next: &Item) -> bool {
        let follows = self.work.last_step + 1 == next.work.first_step;
        follows && !self.alone && !next.alone && self.tables == next.tables
    }
}

/// What a push changes: per stage the number of tables and their positions, then the parameters.
fn tables_of(sparse: &[SparseStage], dense: &[DenseStage]) -> Vec<usize> {
    let mut tables = Vec::new();
    for stage in sparse {
        let trained = stage.lookups.iter().filter(|lookup| lookup.trained).map(|lookup| lookup.table);
        tables.push(trained.clone().count());
        tables.extend(trained);
    }
    tables.extend(dense.iter().filter(|stage| stage.trained).map(|stage| stage.table));
    tables
}

/// Takes the first pushes of a stream that can be merged: consecutive steps, at most `most` of them. A push that must not be
/// merged is taken alone.
fn take_mergeable(queue: &mut VecDeque<Item>, stream: u32, most: usize) -> Vec<Item> {
    let mut taken: Vec<Item> = Vec::new();
    let mut at = 0;
    while at < queue.len() && taken.len() < most {
        if queue[at].work.stream != stream {
            at += 1;
            continue;
        }
        if taken.last().is_some_and(|last| !last.precedes(&queue[at])) {
            break;
        }
        taken.extend(queue.remove(at));
    }
    taken
}

/// Merges several pushes of a stream into one: the sum of their gradients, numbered with all their steps.
fn merge(items: Vec<Item>) -> Result<Vec<Payload>> {
    let (Some(first), Some(last)) = (items.first(), items.last()) else { return Ok(Vec::new()) };
    let work = WorkId { stream: first.work.stream, first_step: first.work.first_step, last_step: last.work.last_step };
    if items.len() == 1 {
        return Ok(items.into_iter().next().map(|item| item.payloads).unwrap_or_default());
    }
    (0..first.payloads.len())
        .map(|server| {
            let views =
                items.iter().map(|item| PushView::decode(item.payloads[server].bytes())).collect::<Result<Vec<_>>>()?;
            merge_views(work, &views)
        })
        .collect()
}

fn merge_views(work: WorkId, views: &[PushView<'_>]) -> Result<Payload> {
    let shape = &views[0];
    let merging = |source| Error::Table { action: "merging pushes to", table: "all".into(), source };
    let (want_values, counted) = (shape.want_values, shape.counted);
    let mut push = PushEncoder::new(Head { work, want_values, width: shape.width, counted, measured: false });
    for (stage, PushedStage { keys, show_click, .. }) in shape.stages.iter().enumerate() {
        for (table, (&number, &dim)) in keys.tables.iter().zip(keys.dims).enumerate() {
            let parts = views.iter().map(|view| {
                let PushedStage { keys, gradients, show_click } = &view.stages[stage];
                SparsePart { keys: keys.keys, gradients: &gradients[table], show_click: *show_click }
            });
            let mut sum = match show_click {
                Some(_) => SparseMean::counting(dim as usize),
                None => SparseMean::new(dim as usize),
            };
            let merged = sum.mean(1, parts).map_err(merging)?;
            let rows = merged.gradients.chunks_exact(dim as usize);
            let mut counts =
                merged.show_click.map(|counts| (counts.show.iter().copied(), counts.click.iter().copied()));
            let counts = counts.as_mut().map(|(show, click)| Counts { show, click });
            push.stage(&[number], &[dim], merged.keys, std::iter::once(rows), counts);
        }
    }
    let mut push = push.blocks();
    let mut sum = DenseMean::new();
    for (at, &(block, _)) in shape.blocks.iter().enumerate() {
        let gradients = views.iter().map(|view| &*view.blocks[at].1);
        push.block(block, sum.mean(1, gradients).map_err(merging)?);
    }
    Ok(push.finish())
}
