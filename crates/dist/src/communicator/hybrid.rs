//! Hybrid on the worker: dense parameters step with everybody, sparse gradients follow behind, at most so many batches.
//!
//! A batch is in flight from its push until every server has applied its sparse gradients. The bound is counted per
//! stream and kept before the next push leaves, so the staleness of a row is never more than `staleness` batches.

use std::collections::{HashMap, VecDeque};

use openfleet_core::WorkId;
use openfleet_core::strategy::HybridPlan;
use openfleet_table::PushReport;
use parking_lot::Mutex;

use super::remote::{Remote, wait_all};
use super::stepwise::pull_if_empty;
use super::{Communicator, Missing};
use crate::client::Pending;
use crate::error::Result;
use crate::request::Kind;
use crate::stage::{DenseStage, SparseStage};

/// Dense in step, sparse behind.
pub struct Hybrid {
    remote: Remote,
    plan: HybridPlan,
    streams: Mutex<HashMap<u32, Stream>>,
}

#[derive(Default)]
struct Stream {
    /// The group's step for the dense push.
    step: u64,
    joined: bool,
    /// Sparse pushes have a ledger of their own, and so steps of their own.
    sparse_step: u64,
    in_flight: VecDeque<Vec<Pending>>,
    most_in_flight: usize,
}

impl Hybrid {
    /// On a program's tables.
    pub fn new(remote: Remote, plan: HybridPlan) -> Self {
        Hybrid { remote, plan, streams: Mutex::default() }
    }

    /// The most batches of any stream that were in flight at a time.
    pub fn most_in_flight(&self) -> usize {
        self.streams.lock().values().map(|stream| stream.most_in_flight).max().unwrap_or(0)
    }

    /// A stream that is new here may not be new to the servers: a restarted worker goes on where its predecessor stopped.
    fn take(&self, number: u32) -> Result<Stream> {
        if let Some(stream) = self.streams.lock().remove(&number) {
            return Ok(stream);
        }
        // One that died between its two pushes of a batch makes both again; what was applied is recognised.
        let (sparse, dense) = (self.remote.position(self.sparse_stream(number))?, self.remote.position(number)?);
        let sparse_step = sparse.start.min(dense.start);
        Ok(Stream { sparse_step, ..Stream::default() })
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

    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        pull_if_empty(&self.remote, stages)
    }

    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<PushReport> {
        let number = self.remote.worker.stream(work.stream);
        let mut stream = self.take(number)?;
        if !stream.joined {
            stream.step = self.remote.join(number)?;
            stream.joined = true;
        }
        // Room for this batch first, then it may fly.
        Self::settle(&mut stream, self.plan.staleness - 1)?;
        let sparse_work = WorkId::step(self.sparse_stream(number), stream.sparse_step);
        let payloads = self.remote.encode_push(sparse_work, sparse, &[], false);
        let asked = self.remote.links.iter().zip(payloads).map(|(link, payload)| link.ask(Kind::Push, payload));
        stream.in_flight.push_back(asked.collect());
        stream.most_in_flight = stream.most_in_flight.max(stream.in_flight.len());
        stream.sparse_step += 1;
        self.remote.push_in_step(WorkId::step(number, stream.step), &[], dense)?;
        stream.step += 1;
        self.streams.lock().insert(number, stream);
        Ok(PushReport::default())
    }

    fn steps_together(&self) -> bool {
        true
    }

    fn begin(&self, stream: u32) -> Result<()> {
        let number = self.remote.worker.stream(stream);
        let mut stream = self.take(number)?;
        stream.step = self.remote.join(number)?;
        stream.joined = true;
        self.streams.lock().insert(number, stream);
        Ok(())
    }

    fn position(&self, stream: u32) -> Result<u64> {
        let number = self.remote.worker.stream(stream);
        let stream = self.take(number)?;
        let step = stream.sparse_step;
        self.streams.lock().insert(number, stream);
        Ok(step)
    }

    fn finish(&self, stream: u32) -> Result<()> {
        let number = self.remote.worker.stream(stream);
        let mut stream = self.take(number)?;
        Self::settle(&mut stream, 0)?;
        stream.joined = false;
        self.streams.lock().insert(number, stream);
        self.remote.leave(number)
    }

    fn flush(&self) -> Result<()> {
        self.streams.lock().values_mut().try_for_each(|stream| Self::settle(stream, 0))
    }

    fn close(&self) -> Result<()> {
        self.flush()?;
        self.remote.depart()
    }
}
