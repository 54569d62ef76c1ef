//! The exchange thread: takes windows of touched keys from the queue, sends their differences and adds what other workers changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use openfleet_core::strategy::GeoScale;
use openfleet_core::{Key, WorkId};
use openfleet_table::{Scratch, clip};
use tracing::warn;

use super::{Job, Shared};
use crate::communicator::remote::PushReply;
use crate::communicator::{Failure, Worker, wait_all};
use crate::error::{Error, Result};
use crate::frame::Reader;
use crate::request::geo_flush_done::GeoFlushDone;
use crate::request::{Kind, exchange_geo};
use crate::stage::{DenseStage, SparseStage};

/// The exchange thread.
pub(super) struct Exchanger {
    shared: Arc<Shared>,
    /// The servers' values of each dense parameter as last received, plus what was sent since.
    base: Vec<Vec<f32>>,
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
        Exchanger { shared, base, next: 0, wanted: None, scratch: Scratch::new() }
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
        let workers = match self.shared.settings.scale {
            GeoScale::Mean => self.shared.remote.worker.count as f32,
            GeoScale::Sum => 1.0,
        };
        match job {
            Job::Window(window) => {
                let trained = self.shared.dense.iter().map(|dense| dense.trained.load(Ordering::Relaxed)).collect();
                self.exchange_in_parts(&keys_of(window), workers, trained)
            }
            Job::Flush(window) if !self.shared.settings.flush_residual => {
                self.exchange_in_parts(&keys_of(window), workers, vec![true; self.base.len()])
            }
            // The keys of the window differ from the base, so they are among the unsent ones.
            Job::Flush(_) => {
                let local_rows = &self.shared.local_rows;
                let keys: Vec<Vec<Key>> = (0..local_rows.len()).map(|number| local_rows.unsent(number)).collect();
                self.exchange_in_parts(&keys, 1.0, vec![true; self.base.len()])
            }
        }
    }

    /// Exchanges the differences of these rows of each table and, with the first of them, of the dense parameters that take part.
    fn exchange_in_parts(&mut self, keys: &[Vec<Key>], divisor: f32, takes_part: Vec<bool>) -> Result<()> {
        let rounds = keys.iter().map(|keys| keys.len().div_ceil(EXCHANGED_ROWS)).max().unwrap_or(0).max(1);
        let nothing = vec![false; takes_part.len()];
        let mut takes_part = Some(takes_part);
        (0..rounds).try_for_each(|round| {
            let part = keys.iter().map(|keys| keys.chunks(EXCHANGED_ROWS).nth(round).unwrap_or_default());
            self.exchange(part, divisor, takes_part.take().unwrap_or_else(|| nothing.clone()))
        })
    }

    /// Makes one exchange: differences of these rows of each table, and of the dense parameters that take part.
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
        // Exchanges have their own stream, numbered after those of all training threads.
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
                let dim = local_rows.dim(number);
                let changed = exchange_geo::take_changed(&mut reader, dim)?;
                let rows = changed.rows.chunks(EXCHANGED_ROWS * dim);
                for (keys, rows) in changed.keys.chunks(EXCHANGED_ROWS).zip(rows) {
                    local_rows.receive(number, keys, rows, &mut self.scratch)?;
                }
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

    /// The difference of a parameter from the servers' values, divided by `divisor`; it is added to the base. If a difference
    /// is not finite, zeros are sent: the servers would refuse it, and the base must stay equal to what they have.
    fn dense_difference(&mut self, table: usize, divisor: f32) -> DenseStage {
        let base = &mut self.base[table];
        let mut difference: Vec<f32> = self.shared.dense[table]
            .local
            .read(|local| local.iter().zip(&*base).map(|(local, base)| (local - base) / divisor).collect());
        if !clip::is_finite(&difference) {
            warn!(
                "parameter `{}` is no longer finite on this worker: its difference is not sent",
                self.shared.dense[table].name
            );
            difference.fill(0.0);
        }
        base.iter_mut().zip(&difference).for_each(|(base, difference)| *base += difference);
        DenseStage { table, values: vec![0.0; base.len()], gradient: difference, trained: true, version: 0 }
    }

    /// Adds the other workers' changes to a parameter.
    fn receive_dense(&mut self, stage: DenseStage) -> Result<()> {
        let dense = &self.shared.dense[stage.table];
        let base = std::mem::replace(&mut self.base[stage.table], stage.values);
        let server = &self.base[stage.table];
        let difference: Vec<f32> = server.iter().zip(&base).map(|(server, base)| server - base).collect();
        // Nothing has changed, so the training threads need not copy the parameter again.
        if difference.iter().all(|&difference| difference == 0.0) {
            return Ok(());
        }
        let error = |source| Error::Table { action: "adding to", table: dense.name.clone(), source };
        dense.local.add(&difference).map(drop).map_err(error)
    }
}

fn keys_of(window: Vec<Touched>) -> Vec<Vec<Key>> {
    window.into_iter().map(Touched::into_keys).collect()
}

/// The keys of a window, each at least once.
#[derive(Debug, Clone, Default)]
pub(super) struct Touched {
    pub(super) keys: Vec<Key>,
    /// Length at which duplicates are removed next.
    limit: usize,
}

impl Touched {
    /// Removes duplicates each time the list has doubled, so it has at most twice as many entries as distinct keys.
    pub(super) fn add(&mut self, keys: &[Key]) {
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

    /// Each key once, in ascending order.
    pub(super) fn into_keys(mut self) -> Vec<Key> {
        self.sort();
        self.keys
    }
}
