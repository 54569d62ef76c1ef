//! The exchange thread: takes windows of touched keys from the queue, sends their differences and adds what other workers changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use openfleet_core::strategy::{FloatWidth, GeoScale};
use openfleet_core::{Key, WorkId};
use openfleet_table::{Scratch, clip};
use tracing::warn;

use super::{Job, Shared};
use crate::client::Link;
use crate::communicator::remote::{HeldValues, PushReply};
use crate::communicator::{Failure, Worker, wait_all};
use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};
use crate::gradients::request_changes;
use crate::request::geo_flush_done::GeoFlushDone;
use crate::request::{Kind, exchange_geo};
use crate::stage::{DenseStage, SparseStage};

/// The exchange thread.
pub(super) struct Exchanger {
    shared: Arc<Shared>,
    /// The servers' values of each dense parameter as last received.
    base: HeldValues,
    /// The number of the next exchange.
    next: u64,
    /// The ticket of a save that waits for this worker's unsent differences.
    wanted: Option<u64>,
    scratch: Scratch,
}

/// Maximum rows per table in one exchange; a larger window takes several. Bounds the memory for exchanging: the rows, their base,
/// the differences and the message are in memory at once.
const EXCHANGED_ROWS: usize = 1 << 15;

impl Exchanger {
    /// `base` is what the servers have of each dense parameter.
    pub(super) fn new(shared: Arc<Shared>, base: Vec<Vec<f32>>) -> Self {
        Exchanger { shared, base: HeldValues::of(base), next: 0, wanted: None, scratch: Scratch::new() }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn run(&mut self) {
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
            // There is space in the queue again.
            shared.changed.notify_all();
            let outcome = self.work(job).and_then(|()| self.send_what_is_wanted());
            let mut outbox = shared.outbox.lock();
            outbox.done += 1;
            if let Err(error) = &outcome {
                outbox.failed = Some(Failure::from(error));
            }
            drop(outbox);
            // Passes an error on to every training thread.
            shared.changed.notify_all();
            if outcome.is_err() {
                return;
            }
        }
    }

    /// If a save waits for it, sends all unsent differences and reports that they are sent.
    fn send_what_is_wanted(&mut self) -> Result<()> {
        let Some(ticket) = self.wanted else { return Ok(()) };
        if self.shared.settings.flush_residual {
            self.work(Job::Flush(Vec::new()))?;
        }
        // Clear it here: the exchanges above have set it again.
        self.wanted = None;
        let links = self.shared.remote.links.iter();
        wait_all(links.map(|link| link.send(&GeoFlushDone { ticket })).collect::<Result<_>>()?).map(drop)
    }

    fn work(&mut self, job: Job) -> Result<()> {
        let (shared, started) = (self.shared.clone(), Instant::now());
        let workers = shared.remote.worker.count as f32;
        // How windows divide rows and dense differences, and how a flush does.
        let (usual, flushed) = match shared.settings.scale {
            GeoScale::Average => (Divisors { rows: 1.0, dense: workers }, Divisors { rows: 1.0, dense: workers }),
            GeoScale::Mean => (Divisors { rows: workers, dense: workers }, Divisors::NONE),
            GeoScale::Sum => (Divisors::NONE, Divisors::NONE),
        };
        let trained = || shared.dense.iter().map(|dense| dense.trained.load(Ordering::Relaxed)).collect();
        let all = vec![true; shared.dense.len()];
        match job {
            Job::Dense(keys) => {
                self.exchange_in_parts(&keys, usual, trained(), Reply::Changes)?;
                let mut outbox = shared.outbox.lock();
                outbox.exchanges_dense = false;
                outbox.rhythm.exchanged_dense(started.elapsed(), Instant::now());
            }
            Job::Window(window, window_time) => {
                self.exchange_in_parts(&window, usual, trained(), Reply::Changes)?;
                let took = started.elapsed();
                let changed = shared.outbox.lock().rhythm.exchanged_rows(took, window_time);
                if let Some(steps) = changed {
                    let [took, window] = [took, window_time].map(|time| time.as_secs_f64() * 1e3);
                    warn!(
                        "rows are now exchanged every {steps} batches: an exchange takes {took:.0} ms, and the batches \
                         between two took {window:.0} ms"
                    );
                }
            }
            Job::Flush(window) if !shared.settings.flush_residual => {
                self.exchange_in_parts(&window, usual, all, Reply::Values)?;
            }
            // The keys of the window are among the unsent ones.
            Job::Flush(_) => {
                let local_rows = &shared.local_rows;
                let keys: Vec<Vec<Key>> = (0..local_rows.len()).map(|number| local_rows.unsent(number)).collect();
                self.exchange_in_parts(&keys, flushed, all, Reply::Values)?;
            }
        }
        Ok(())
    }

    /// Exchanges the differences of these rows of each table and, with the first of them, of the dense parameters that take part.
    fn exchange_in_parts(
        &mut self,
        keys: &[Vec<Key>],
        divisors: Divisors,
        takes_part: Vec<bool>,
        reply: Reply,
    ) -> Result<()> {
        let rounds = keys.iter().map(|keys| keys.len().div_ceil(EXCHANGED_ROWS)).max().unwrap_or(0).max(1);
        let nothing = vec![false; takes_part.len()];
        let mut takes_part = Some(takes_part);
        (0..rounds).try_for_each(|round| {
            let part = keys.iter().map(|keys| keys.chunks(EXCHANGED_ROWS).nth(round).unwrap_or_default());
            self.exchange(part, divisors, takes_part.take().unwrap_or_else(|| nothing.clone()), reply)
        })
    }

    /// Makes one exchange: differences of these rows of each table, and of the dense parameters that take part.
    fn exchange<'a>(
        &mut self,
        keys: impl Iterator<Item = &'a [Key]>,
        divisors: Divisors,
        takes_part: Vec<bool>,
        reply: Reply,
    ) -> Result<()> {
        let shared = self.shared.clone();
        let (remote, local_rows) = (&shared.remote, &shared.local_rows);
        let sparse: Vec<SparseStage> = keys
            .enumerate()
            .map(|(number, keys)| local_rows.differences(number, keys, divisors.rows, &mut self.scratch))
            .collect::<Result<_>>()?;
        let with_changes = remote.float_width() == FloatWidth::Bits16 && takes_part.contains(&true);
        let (mut dense, mut expected) = (Vec::new(), Vec::new());
        for (table, &trained) in takes_part.iter().enumerate() {
            let unsent = || DenseStage { table, ..DenseStage::default() };
            let (stage, values) = match trained {
                true => self.dense_difference(table, divisors.dense),
                // Changes are those of all parameters, also of one that only other workers train.
                false if with_changes => (unsent(), self.base.values[table].clone()),
                false => (unsent(), Vec::new()),
            };
            dense.push(stage);
            expected.push(values);
        }
        // Exchanges have their own stream, numbered after those of all training threads.
        let Worker { rank, count, threads } = remote.worker;
        let work = WorkId::step(count * threads + rank * threads, self.next);
        let mut payloads = remote.encode_push(work, &sparse, &dense, PushReply::Nothing);
        if with_changes {
            for (server, payload) in payloads.iter_mut().enumerate() {
                request_changes(payload, if reply == Reply::Changes { self.base.number(server) } else { 0 });
            }
        }
        drop(sparse);
        local_rows.begin_exchange();
        // Rows that a batch needs do not wait behind an exchange.
        let send = |(link, payload): (&Link, Payload)| link.send_payload_apart(Kind::ExchangeGeo, payload);
        let asked: Vec<_> = remote.links.iter().zip(payloads).map(send).collect();
        self.next += 1;
        for (server, pending) in asked.into_iter().enumerate() {
            let answer = pending.wait()?;
            let mut reader = Reader::new(answer.bytes());
            let ticket = exchange_geo::take_ticket(&mut reader)?;
            self.wanted = self.wanted.or((ticket != 0).then_some(ticket));
            for number in 0..local_rows.len() {
                let dim = local_rows.dim(number);
                let changed = exchange_geo::take_changed(&mut reader, dim)?;
                let rows = changed.rows.chunks(EXCHANGED_ROWS * dim);
                for (keys, rows) in changed.keys.chunks(EXCHANGED_ROWS).zip(rows) {
                    local_rows.receive(remote, number, keys, rows, &mut self.scratch)?;
                }
            }
            match with_changes {
                true => remote.take_changes(server, &mut reader, &mut self.base)?,
                false => remote.take_trained_values(server, &mut reader, &mut dense)?,
            }
            reader.end()?;
        }
        for (stage, expected) in dense.into_iter().zip(expected).filter(|(stage, _)| with_changes || stage.trained) {
            let table = stage.table;
            if !with_changes {
                self.base.values[table] = stage.values;
            }
            self.receive_dense(table, &expected)?;
        }
        shared.outbox.lock().exchanges += 1;
        Ok(())
    }

    /// The difference of a parameter from the servers' values, divided by `divisor`, and the values that the servers have
    /// afterwards if no other worker changes them. If parameters are averaged, the worker's own values are returned instead: what
    /// the servers do not get of the difference is given up. If a difference is not finite, zeros are sent, because the servers
    /// would refuse it.
    fn dense_difference(&mut self, table: usize, divisor: f32) -> (DenseStage, Vec<f32>) {
        let base = &self.base.values[table];
        let mut difference: Vec<f32> = self.shared.dense[table]
            .local
            .read(|local| local.iter().zip(base).map(|(local, base)| (local - base) / divisor).collect());
        if !clip::is_finite(&difference) {
            warn!(
                "parameter `{}` is no longer finite on this worker: its difference is not sent",
                self.shared.dense[table].name
            );
            difference.fill(0.0);
        }
        let kept = if self.shared.settings.scale == GeoScale::Average { divisor } else { 1.0 };
        let expected = base.iter().zip(&difference).map(|(base, difference)| base + difference * kept).collect();
        let values = vec![0.0; base.len()];
        (DenseStage { table, values, gradient: difference, trained: true, version: 0 }, expected)
    }

    /// Adds to a parameter how the servers' new values differ from the expected ones: the other workers' changes.
    fn receive_dense(&mut self, table: usize, expected: &[f32]) -> Result<()> {
        let dense = &self.shared.dense[table];
        let server = &self.base.values[table];
        let difference: Vec<f32> = server.iter().zip(expected).map(|(server, expected)| server - expected).collect();
        // Nothing has changed, so the training threads need not copy the parameter again.
        if difference.iter().all(|&difference| difference == 0.0) {
            return Ok(());
        }
        let error = |source| Error::Table { action: "adding to", table: dense.name.clone(), source };
        dense.local.add(&difference).map(drop).map_err(error)
    }
}

/// The dense values in the reply to an exchange, if floats are narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    /// How they have changed since the last reply, rounded.
    Changes,
    /// Exactly: an evaluation after a flush must see what would be saved.
    Values,
}

/// What differences are divided by.
#[derive(Debug, Clone, Copy)]
struct Divisors {
    rows: f32,
    dense: f32,
}

impl Divisors {
    const NONE: Divisors = Divisors { rows: 1.0, dense: 1.0 };
}
