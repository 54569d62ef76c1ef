//! Sync and half-async on the worker: push, wait for the group, go on with the values that came back.
//!
//! The two differ only in who steps together, and that is the server's choice: all streams of the job, or the streams of
//! one worker. A push is answered when the step has been applied, so the next pull sees it on every server.

use std::collections::HashMap;

use openfleet_core::WorkId;
use openfleet_table::PushReport;
use parking_lot::Mutex;

use super::remote::Remote;
use super::{Communicator, Missing};
use crate::error::Result;
use crate::stage::{DenseStage, SparseStage};

/// Streams that step together.
pub struct Stepwise {
    remote: Remote,
    /// The group's step at which each joined stream pushes next.
    steps: Mutex<HashMap<u32, u64>>,
}

impl Stepwise {
    /// On a program's tables.
    pub fn new(remote: Remote) -> Self {
        Stepwise { remote, steps: Mutex::default() }
    }
}

impl Communicator for Stepwise {
    fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()> {
        self.remote.pull_sparse(stages, missing)
    }

    /// Pushes bring the values with them; only a copy that has none yet asks for them.
    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        pull_if_empty(&self.remote, stages)
    }

    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<PushReport> {
        let stream = self.remote.worker.stream(work.stream);
        let known = self.steps.lock().get(&stream).copied();
        let step = match known {
            Some(step) => step,
            None => self.remote.join(stream)?,
        };
        self.remote.push_in_step(WorkId::step(stream, step), sparse, dense)?;
        self.steps.lock().insert(stream, step + 1);
        Ok(PushReport::default())
    }

    fn steps_together(&self) -> bool {
        true
    }

    fn begin(&self, stream: u32) -> Result<()> {
        let stream = self.remote.worker.stream(stream);
        let step = self.remote.join(stream)?;
        self.steps.lock().insert(stream, step);
        Ok(())
    }

    fn position(&self, stream: u32) -> Result<u64> {
        Ok(self.remote.position(self.remote.worker.stream(stream))?.start)
    }

    fn finish(&self, stream: u32) -> Result<()> {
        let stream = self.remote.worker.stream(stream);
        self.steps.lock().remove(&stream);
        self.remote.leave(stream)
    }

    fn close(&self) -> Result<()> {
        self.remote.depart()
    }
}

/// A copy of version 0 has no values yet.
pub(super) fn pull_if_empty(remote: &Remote, stages: &mut [DenseStage]) -> Result<()> {
    if stages.iter().all(|stage| stage.version > 0) {
        return Ok(());
    }
    remote.pull_dense(stages)?;
    stages.iter_mut().for_each(|stage| stage.version = 1);
    Ok(())
}
