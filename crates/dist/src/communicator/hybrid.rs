//! Hybrid mode on the worker: dense parameters step together with all workers; sparse gradients are sent asynchronously, with
//! bounded staleness.
//!
//! A batch is in flight from its push until every server has applied its sparse gradients. The bound is per stream and checked
//! before the next push is sent, so a row is never stale by more than `staleness` batches.

use std::collections::{HashMap, VecDeque};

use openfleet_core::strategy::HybridSettings;
use openfleet_core::{Key, WorkId};
use parking_lot::Mutex;

use super::remote::{PushReply, Remote, wait_all};
use super::stepwise::pull_if_empty;
use super::{Communicator, Missing, Pushed, Step};
use crate::client::Pending;
use crate::error::Result;
use crate::request::Kind;
use crate::stage::{DenseStage, SparseStage};

/// The communicator of hybrid mode.
pub struct Hybrid {
    remote: Remote,
    settings: HybridSettings,
    streams: Mutex<HashMap<u32, Stream>>,
}

#[derive(Default)]
struct Stream {
    in_flight: VecDeque<Vec<Pending>>,
    most_in_flight: usize,
}

impl Hybrid {
    /// Hybrid mode on a program's tables.
    pub fn new(remote: Remote, settings: HybridSettings) -> Self {
        Hybrid { remote, settings, streams: Mutex::default() }
    }

    /// The maximum number of batches of one stream that were ever in flight.
    pub fn most_in_flight(&self) -> usize {
        self.streams.lock().values().map(|stream| stream.most_in_flight).max().unwrap_or(0)
    }

    fn take(&self, number: u32) -> Stream {
        self.streams.lock().remove(&number).unwrap_or_default()
    }

    fn settle(stream: &mut Stream, left: usize) -> Result<()> {
        while stream.in_flight.len() > left {
            if let Some(oldest) = stream.in_flight.pop_front() {
                wait_all(oldest)?;
            }
        }
        Ok(())
    }

    /// Sparse streams are numbered after all dense ones.
    fn sparse_stream(&self, stream: u32) -> u32 {
        self.remote.worker.count * self.remote.worker.threads + stream
    }
}

impl Communicator for Hybrid {
    fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()> {
        self.remote.pull_sparse(stages, missing)
    }

    fn put_rows(&self, table: usize, keys: &[Key], rows: &[f32]) -> Result<()> {
        self.remote.put_rows(table, keys, rows)
    }

    fn keys(&self, table: usize) -> Result<Vec<Key>> {
        self.remote.keys(table)
    }

    fn set_rate_factor(&self, factor: f32) {
        self.remote.set_rate_factor(factor);
    }

    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        pull_if_empty(&self.remote, stages)
    }

    fn job_stream(&self, stream: u32) -> u32 {
        self.remote.worker.stream(stream)
    }

    /// The dense and the sparse push of a step have the same number, in two streams.
    fn next_step(&self, stream: u32) -> Result<Step> {
        let number = self.remote.worker.stream(stream);
        Ok(self.remote.streams.next(stream, Some(self.sparse_stream(number))))
    }

    fn pushes_early(&self) -> bool {
        true
    }

    fn push_early(&self, work: WorkId, dense: &[DenseStage], stages: &[usize]) -> Result<()> {
        self.remote.join_implicit(work.stream)?;
        let number = self.remote.worker.stream(work.stream);
        self.remote.push_early(WorkId::step(number, work.first_step), dense, stages);
        Ok(())
    }

    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<Pushed> {
        let number = self.remote.worker.stream(work.stream);
        self.remote.join_implicit(work.stream)?;
        let mut stream = self.take(number);
        // Wait for older batches before this one is sent.
        Self::settle(&mut stream, self.settings.staleness - 1)?;
        let sparse_work = WorkId::step(self.sparse_stream(number), work.first_step);
        let payloads = self.remote.encode_push(sparse_work, sparse, &[], PushReply::Nothing);
        let asked =
            self.remote.links.iter().zip(payloads).map(|(link, payload)| link.send_payload(Kind::Push, payload));
        stream.in_flight.push_back(asked.collect());
        stream.most_in_flight = stream.most_in_flight.max(stream.in_flight.len());
        let barrier = self.remote.push_in_step(WorkId::step(number, work.first_step), &[], dense, &mut [])?;
        self.streams.lock().insert(number, stream);
        Ok(Pushed { barrier, ..Pushed::default() })
    }

    fn steps_together(&self) -> bool {
        true
    }

    fn return_step(&self, stream: u32) {
        self.remote.drop_early(stream);
        self.remote.streams.return_step(stream);
    }

    fn begin(&self, stream: u32) -> Result<()> {
        self.remote.begin(stream)
    }

    fn finish(&self, stream: u32) -> Result<()> {
        self.remote.forget_rows();
        let number = self.remote.worker.stream(stream);
        let mut state = self.take(number);
        Self::settle(&mut state, 0)?;
        self.streams.lock().insert(number, state);
        self.remote.finish(stream)
    }

    fn finish_implicit(&self, also_empty: bool) -> Result<()> {
        self.flush()?;
        self.remote.finish_implicit(also_empty)
    }

    fn abandon(&self) {
        self.remote.abandon();
    }

    fn flush(&self) -> Result<()> {
        self.remote.forget_rows();
        self.streams.lock().values_mut().try_for_each(|stream| Self::settle(stream, 0))
    }

    fn close(&self) -> Result<()> {
        self.flush()?;
        self.remote.depart()
    }
}
