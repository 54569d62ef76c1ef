//! Async mode on the worker: gradients are sent through a bounded queue, and dense values are fetched independently.
//!
//! ```text
//! training threads --push--> queue (bounded: a full one makes them wait) --sender--> servers
//!                  <--pull-- latest dense values <-- replies to pushes, or receiver --
//! ```
//!
//! The sender merges up to `max_gradients` consecutive pushes of a stream into their sum, and waits up to `wait_ms` for an
//! incomplete merge to fill. Unless the user has set `max_gradients`, gradients are sent one by one, and merged only while pushes
//! are slow ([`pacing`]).
//!
//! With independent receiving, dense values are fetched each time `min_sent` gradients have been sent. If that is each time, and
//! floats are narrow, the reply to a push carries how the values have changed, and only flushes need the receiver. If values are
//! received after each push instead, its thread waits for them, so one worker with one thread and no merging trains exactly as in
//! one process. Rows are pulled fresh for every batch, unless pulls are slow: then they are requested one batch ahead.
//!
//! If every push is followed by a fetch, a thread stays close to what it has sent. It never computes while more of its own gradients
//! are missing from its values than one (on a slow link: twice what a push has, less one): one push in flight keeps both the thread
//! and the servers busy, and a longer queue would only add delay (with servers slower than workers and small batches, so much that
//! the model learns nothing). The thread also gives its last gradient time to arrive before it begins the next batch, at most a
//! share of the time that the last batch took ([`WAITING_SHARE`]). With fast servers, only the other workers' gradients are
//! then missing, which wins back half of the AUC that two workers otherwise lose. With slow servers, the cost is at most that
//! share.

mod merging;
mod pacing;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use openfleet_core::strategy::{AsyncSettings, DenseReceive, FloatWidth};
use openfleet_core::{Key, WorkId};
use parking_lot::{Condvar, Mutex};
use tracing::warn;

use self::merging::{Item, merge, tables_of, take_mergeable};
use self::pacing::{Averages, Pacing};
use super::remote::{HeldValues, PullInFlight, PushReply, Remote, wait_all};
use super::{Communicator, Failure, Missing, Pushed, Step};
use crate::client::Link;
use crate::error::Result;
use crate::frame::{Payload, PayloadPool};
use crate::gradients::request_changes;
use crate::request::Kind;
use crate::stage::{DenseStage, SparseStage};

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
    /// Held while changes of dense values are requested and added: they refer to the reply before.
    fetching: Mutex<()>,
    /// Whether replies to pushes carry the changes of dense values.
    changes_with_replies: bool,
    pacing: Mutex<Pacing>,
    /// Memory for merging.
    payloads: PayloadPool,
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
    /// Per stream: the first step that the latest dense values do not contain.
    arrived: HashMap<u32, u64>,
    most_queued: usize,
    closed: bool,
    failed: Option<Failure>,
    /// When the last push of each stream returned.
    pushed: HashMap<u32, Instant>,
    /// How long each training thread has waited for rows since its last push.
    pull_waits: HashMap<ThreadId, Duration>,
}

impl Outbox {
    /// Dense values with all steps before these have arrived. A reply to a push may have brought newer ones since the receiver
    /// requested its values: they stay, or a thread would wait for a reply that it already has.
    fn values_contain(&mut self, steps: &HashMap<u32, u64>) {
        for (&stream, &step) in steps {
            let arrived = self.arrived.entry(stream).or_default();
            *arrived = step.max(*arrived);
        }
    }
}

#[derive(Default)]
struct Latest {
    version: u64,
    held: HeldValues,
}

impl Async {
    /// Async mode on a program's tables. Starts the sender and receiver threads if dense values are received independently.
    pub fn new(remote: Remote, settings: AsyncSettings) -> Self {
        let fetches_each_time = settings.receive == (DenseReceive::Independent { min_sent: 1 });
        let shared = Arc::new(Shared {
            changes_with_replies: fetches_each_time && remote.float_width() == FloatWidth::Bits16,
            remote,
            settings,
            outbox: Mutex::default(),
            changed: Condvar::new(),
            latest: Mutex::default(),
            fetching: Mutex::default(),
            pacing: Mutex::new(Pacing::new(settings.merge.slow_link_gradients)),
            payloads: PayloadPool::default(),
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
        let started = Instant::now();
        self.shared.remote.pull_sparse(stages, missing)?;
        // Pulls of an evaluation say nothing about training.
        if missing == Missing::Create {
            self.shared.pulled_in(started.elapsed());
            self.shared.waited_for_rows(started.elapsed());
        }
        Ok(())
    }

    fn overlaps_pulls(&self) -> bool {
        self.shared.pacing.lock().overlaps()
    }

    fn begin_pull(&self, stages: &[SparseStage]) -> Result<Option<PullInFlight>> {
        let overlaps = self.shared.pacing.lock().overlaps_next_pull();
        Ok(overlaps.then(|| self.shared.remote.begin_pull(stages, Missing::Create)))
    }

    fn end_pull(&self, pull: PullInFlight, stages: &mut [SparseStage]) -> Result<()> {
        let started = Instant::now();
        self.shared.remote.end_pull(pull, stages)?;
        self.shared.waited_for_rows(started.elapsed());
        Ok(())
    }

    fn put_rows(&self, table: usize, keys: &[Key], rows: &[f32]) -> Result<()> {
        self.shared.remote.put_rows(table, keys, rows)
    }

    fn keys(&self, table: usize) -> Result<Vec<Key>> {
        self.shared.remote.keys(table)
    }

    fn set_rate_factor(&self, factor: f32) {
        self.shared.remote.set_rate_factor(factor);
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
            stage.values.copy_from_slice(&latest.held.values[stage.table]);
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
            let batch = outbox.pushed.get(&stream).map(Instant::elapsed);
            let pull_wait = outbox.pull_waits.remove(&std::thread::current().id()).unwrap_or_default();
            batch.inspect(|&batch| shared.pacing.lock().batch_took(batch.saturating_sub(pull_wait)));
            batch.map_or(Duration::ZERO, |batch| batch.mul_f64(WAITING_SHARE))
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
                shared.send(merge(std::mem::take(&mut merged), &shared.payloads)?)?;
            }
            merged.push(item);
            shared.send_and_take(merge(merged, &shared.payloads)?, dense)?;
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
                // One push may be in flight while the thread computes all but one of the gradients of the next.
                let (merged, _) = shared.pacing.lock().merging();
                if missing > 2 * merged as u64 - 1 {
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

    fn finish_implicit(&self, also_empty: bool) -> Result<()> {
        let end = self.shared.remote.streams.end_implicit(also_empty);
        if end.has_steps { self.flush() } else { Ok(()) }
    }

    fn abandon(&self) {
        self.shared.remote.abandon();
    }

    fn flush(&self) -> Result<()> {
        let shared = &self.shared;
        shared.remote.forget_rows();
        if shared.settings.receive == DenseReceive::AfterSend {
            loop {
                let mut outbox = shared.outbox.lock();
                let Some(stream) = outbox.queue.front().map(|item| item.work.stream) else { break };
                let merged = take_mergeable(&mut outbox.queue, stream, shared.settings.merge.max_gradients);
                drop(outbox);
                shared.changed.notify_all();
                shared.send(merge(merged, &shared.payloads)?)?;
            }
            // A thread's copy has the values that its own pushes returned. The next batch, or an evaluation, must see the
            // pushes of all threads.
            return shared.fetch_values();
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
        // While rows are requested ahead, they must not wait behind a push. Otherwise they should: they then contain it.
        let is_apart = self.pacing.lock().overlaps();
        let send = |(link, payload): (&Link, Payload)| match is_apart {
            true => link.send_payload_apart(Kind::Push, payload),
            false => link.send_payload(Kind::Push, payload),
        };
        wait_all(self.remote.links.iter().zip(payloads).map(send).collect())
    }

    fn send_and_take(&self, payloads: Vec<Payload>, dense: &mut [DenseStage]) -> Result<()> {
        for (server, answer) in self.send(payloads)?.iter().enumerate() {
            self.remote.take_pushed_values(server, answer, dense)?;
        }
        Ok(())
    }

    fn send_all(&self) -> Result<()> {
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
            // On a slow link a push waits for as long as it takes to send, because a pull cannot overtake it.
            let (merged, push_time) = self.pacing.lock().merging();
            let most = self.settings.merge.max_gradients.max(merged);
            let wait = Duration::from_millis(self.settings.merge.wait_ms);
            let deadline = Instant::now() + if merged > 1 { push_time } else { wait };
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
            // The reply to the last push in the queue has the changes of all.
            let with_changes = self.changes_with_replies && outbox.queue.is_empty();
            outbox.sending += 1;
            drop(outbox);
            self.changed.notify_all();
            let started = Instant::now();
            let sent = merge(merged, &self.payloads).and_then(|payloads| match with_changes {
                true => self.send_and_take_changes(payloads),
                false => self.send(payloads).map(drop),
            });
            self.pushed_in(started.elapsed());
            let mut outbox = self.outbox.lock();
            outbox.sending -= 1;
            outbox.sent += if self.changes_with_replies { 0 } else { count };
            match &sent {
                Ok(()) => {
                    outbox.answered.insert(stream, last_step + 1);
                    if with_changes {
                        let contained = outbox.answered.clone();
                        outbox.values_contain(&contained);
                    }
                }
                // Set it before the lock is released: a thread that waits for the last push must not think that it succeeded.
                Err(error) => outbox.failed = Some(Failure::from(error)),
            }
            drop(outbox);
            self.changed.notify_all();
            sent?;
        }
    }

    /// Sends a push whose reply has the changes of the dense values.
    fn send_and_take_changes(&self, mut payloads: Vec<Payload>) -> Result<()> {
        let _fetching = self.fetching.lock();
        let numbers = self.latest.lock().held.numbers().to_vec();
        for (server, payload) in payloads.iter_mut().enumerate() {
            request_changes(payload, numbers.get(server).copied().unwrap_or(0));
        }
        let answers = self.send(payloads)?;
        self.take_changes(&answers)
    }

    fn waited_for_rows(&self, time: Duration) {
        *self.outbox.lock().pull_waits.entry(std::thread::current().id()).or_default() += time;
    }

    /// Decides whether later pulls overlap with computing; logs the first time that they do.
    fn pulled_in(&self, took: Duration) {
        let mut pacing = self.pacing.lock();
        if !pacing.pull_took(took) {
            return;
        }
        let Averages { batch, pull, .. } = pacing.averages_ms();
        drop(pacing);
        warn!(
            "slow link: a pull takes {pull:.0} ms and a batch {batch:.0} ms; while pulls are slow, this worker requests the rows of \
             a batch while it computes the batch before"
        );
    }

    /// Decides how many gradients the next pushes have; logs the first time that they are merged.
    fn pushed_in(&self, took: Duration) {
        let mut pacing = self.pacing.lock();
        if !pacing.push_took(took) {
            return;
        }
        let Averages { batch, push, .. } = pacing.averages_ms();
        drop(pacing);
        let most = self.settings.merge.slow_link_gradients;
        warn!(
            "slow link: a push takes {push:.0} ms and a batch {batch:.0} ms; while pushes are slow, this worker merges up to {most} \
             gradients into one (`max_merge_var_num=1` sends each alone)"
        );
    }

    /// Fetches the dense values: as differences from the last ones, or exactly.
    fn fetch(&self, is_exact: bool) -> Result<()> {
        if self.remote.float_width() == FloatWidth::Bits32 {
            return self.fetch_values();
        }
        let _fetching = self.fetching.lock();
        let numbers = if is_exact { Vec::new() } else { self.latest.lock().held.numbers().to_vec() };
        let answers = self.remote.pull_changes(&numbers)?;
        self.take_changes(&answers)
    }

    fn fetch_values(&self) -> Result<()> {
        let values = self.remote.pull_dense_values()?;
        let mut latest = self.latest.lock();
        *latest = Latest { version: latest.version + 1, held: HeldValues::of(values) };
        Ok(())
    }

    fn take_changes(&self, answers: &[Payload]) -> Result<()> {
        let mut latest = self.latest.lock();
        self.remote.take_all_changes(answers, &mut latest.held)?;
        latest.version += 1;
        Ok(())
    }

    fn receive_all(&self, min_sent: u64) -> Result<()> {
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
            // Differences are rounded, but an evaluation after a flush must see what would be saved.
            let is_exact = std::mem::take(&mut outbox.fetch_now);
            let contained = outbox.answered.clone();
            drop(outbox);
            self.fetch(is_exact)?;
            let mut outbox = self.outbox.lock();
            outbox.completed = outbox.begun;
            outbox.values_contain(&contained);
            drop(outbox);
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A save flushes while training goes on: what the receiver has requested for it may arrive after the replies to later pushes.
    #[test]
    fn values_that_were_requested_earlier_do_not_make_newer_ones_missing() {
        let mut outbox = Outbox::default();
        outbox.arrived.insert(1, 4);
        outbox.values_contain(&HashMap::from([(0, 7), (1, 3)]));
        outbox.values_contain(&HashMap::from([(0, 5)]));
        assert_eq!(outbox.arrived, HashMap::from([(0, 7), (1, 4)]));
    }
}
