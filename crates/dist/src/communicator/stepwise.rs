//! Sync and half-async mode on the worker: push, wait for the group, continue with the values in the reply.
//!
//! The two modes differ only in which streams step together, which the server decides: all streams of the job, or the streams
//! of one worker. A push is answered when its step has been applied, so the next pull sees the step on every server. The rows of the
//! next batch come with that answer, if there are few streams: they are read after the step was applied, like those of a pull, and
//! save its round trip.
//!
//! The gradients of the last layers may be sent while those of the first ones are still being computed, as parts of the same push.

use openfleet_core::{Key, WorkId};

use super::remote::Remote;
use super::{Communicator, Missing, Pushed, Step};
use crate::error::Result;
use crate::stage::{DenseStage, SparseStage};

/// In a job with more streams, rows are pulled after the reply. A server answers the pushes of a step one after another, and
/// reading the rows of many of them would take longer than the round trip that it saves.
const MOST_STREAMS: u32 = 8;

/// The communicator of sync and half-async mode.
pub struct Stepwise {
    remote: Remote,
}

impl Stepwise {
    /// Sync or half-async mode on a program's tables.
    pub fn new(remote: Remote) -> Self {
        Stepwise { remote }
    }

    /// A worker's step with its job-wide stream number.
    fn step(&self, work: WorkId) -> Result<WorkId> {
        self.remote.join_implicit(work.stream)?;
        Ok(WorkId::step(self.remote.worker.stream(work.stream), work.first_step))
    }
}

impl Communicator for Stepwise {
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

    /// Replies to pushes carry the values; only a copy without values is pulled.
    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        pull_if_empty(&self.remote, stages)
    }

    fn job_stream(&self, stream: u32) -> u32 {
        self.remote.worker.stream(stream)
    }

    fn next_step(&self, stream: u32) -> Result<Step> {
        Ok(self.remote.streams.next(stream, None))
    }

    fn pushes_early(&self) -> bool {
        true
    }

    fn push_early(&self, work: WorkId, dense: &[DenseStage], stages: &[usize]) -> Result<()> {
        self.remote.push_early(self.step(work)?, dense, stages);
        Ok(())
    }

    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<Pushed> {
        self.push_and_pull(work, sparse, dense, &mut [])
    }

    fn pulls_with_pushes(&self) -> bool {
        self.remote.worker.count * self.remote.worker.threads <= MOST_STREAMS
    }

    fn push_and_pull(
        &self,
        work: WorkId,
        sparse: &mut [SparseStage],
        dense: &mut [DenseStage],
        next: &mut [SparseStage],
    ) -> Result<Pushed> {
        let barrier = self.remote.push_in_step(self.step(work)?, sparse, dense, next)?;
        Ok(Pushed { barrier, ..Pushed::default() })
    }

    fn push_within_norm(
        &self,
        work: WorkId,
        sparse: &mut [SparseStage],
        dense: &mut [DenseStage],
        norm: f32,
    ) -> Result<Pushed> {
        let barrier = self.remote.push_in_step_within_norm(self.step(work)?, sparse, dense, norm)?;
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
        self.remote.finish(stream)
    }

    fn finish_implicit(&self, also_empty: bool) -> Result<()> {
        self.remote.finish_implicit(also_empty)
    }

    fn abandon(&self) {
        self.remote.abandon();
    }

    fn close(&self) -> Result<()> {
        self.remote.depart()
    }
}

/// Pulls if a copy has no values yet (version 0).
pub(super) fn pull_if_empty(remote: &Remote, stages: &mut [DenseStage]) -> Result<()> {
    if stages.iter().all(|stage| stage.version > 0) {
        return Ok(());
    }
    remote.pull_dense(stages)?;
    stages.iter_mut().for_each(|stage| stage.version = 1);
    Ok(())
}
