//! When and how pulls and pushes are sent. One communicator per file; the engine calls all of them in the same way.

mod asynchronous;
mod geo;
mod hybrid;
mod local;
mod mapped;
mod remote;
mod replicated;
mod stepwise;
mod streams;
mod subset;

pub use asynchronous::Async;
pub use geo::Geo;
pub use hybrid::Hybrid;
pub use local::Local;
pub use mapped::Mapped;
pub use openfleet_table::sparse::Missing;
pub(crate) use remote::leave_implicit;
pub use remote::{PullInFlight, Remote, Worker};
pub(crate) use remote::{depart_from, status_of, wait_all};
pub use replicated::{Replicated, StepValues};
pub use stepwise::Stepwise;
pub use streams::{Step, Streams};
pub use subset::TableSubset;

use std::time::Duration;

use openfleet_core::strategy::{ModeSettings, Strategy};
use openfleet_core::{Key, WorkId};
use openfleet_table::{DenseSpec, PushReport, SparseSpec};

use crate::error::{Error, Result};
use crate::stage::{self, DenseStage, SparseStage};

/// The result of a push.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pushed {
    /// How many gradients were applied and refused, as far as that is known when the call returns.
    pub report: PushReport,
    /// How long the push waited for the gradients of other workers. 0 in modes whose workers do not step together.
    pub barrier: Duration,
}

impl From<PushReport> for Pushed {
    fn from(report: PushReport) -> Self {
        Pushed { report, barrier: Duration::ZERO }
    }
}

/// What a training thread calls around each of its steps:
///
/// ```text
/// begin -> ( next_step -> pull_sparse, pull_dense -> compute -> push )* -> finish
/// ```
///
/// A step that the servers had applied before this process started is skipped, or computed without being pushed.
///
/// Every method may be called from many training threads at once, each with its own stages.
pub trait Communicator: Send + Sync {
    /// Fills `rows` of every lookup with the rows of the stage's unique keys.
    fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()>;

    /// Whether the rows of a batch should be requested while the batch before is computed. In async, which does so only while
    /// pulls are slow, they may then lack the gradients of that batch. No mode that promises newer rows does this.
    fn overlaps_pulls(&self) -> bool {
        false
    }

    /// Requests the rows of a later batch. `None` if they should still be pulled when they are needed.
    fn begin_pull(&self, _stages: &[SparseStage]) -> Result<Option<PullInFlight>> {
        Ok(None)
    }

    /// Waits for the rows that [`begin_pull`](Communicator::begin_pull) has requested for the same stages.
    fn end_pull(&self, _pull: PullInFlight, stages: &mut [SparseStage]) -> Result<()> {
        self.pull_sparse(stages, Missing::Create)
    }

    /// Brings every dense copy up to date; a copy that is already the newest is not changed.
    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()>;

    /// Sets the weights of keys that have no row yet; other rows stay as they are. Idempotent.
    fn put_rows(&self, table: usize, keys: &[Key], rows: &[f32]) -> Result<()>;

    /// The keys of all rows of a table, in any order.
    fn keys(&self, table: usize) -> Result<Vec<Key>>;

    /// Whether [`push_early`](Communicator::push_early) sends gradients.
    fn pushes_early(&self) -> bool {
        false
    }

    /// Sends the gradients of these dense stages, which are complete, while the rest of the step is computed. They are applied with
    /// the [`push`](Communicator::push) of the same step, which sends the others, and dropped by
    /// [`return_step`](Communicator::return_step).
    fn push_early(&self, _work: WorkId, _dense: &[DenseStage], _stages: &[usize]) -> Result<()> {
        Ok(())
    }

    /// Sets what multiplies the learning rates of all tables in the pushes from now on.
    fn set_rate_factor(&self, factor: f32);

    /// Sends the sparse and dense gradients of one step, and refreshes the dense copies if the mode does so.
    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<Pushed>;

    /// Whether [`push_and_pull`](Communicator::push_and_pull) saves a round trip. The rows are as new as those of a pull after the
    /// push.
    fn pulls_with_pushes(&self) -> bool {
        false
    }

    /// Like [`push`](Communicator::push), then fills the rows of `next`, the stages of the stream's next step.
    fn push_and_pull(
        &self,
        work: WorkId,
        sparse: &mut [SparseStage],
        dense: &mut [DenseStage],
        next: &mut [SparseStage],
    ) -> Result<Pushed> {
        let pushed = self.push(work, sparse, dense)?;
        self.pull_sparse(next, Missing::Create)?;
        Ok(pushed)
    }

    /// Like [`push`](Communicator::push), with the gradients scaled so that their global norm is at most `norm`. If streams
    /// step together, it is the norm of the group's mean gradients, else of this step's gradients.
    fn push_within_norm(
        &self,
        work: WorkId,
        sparse: &mut [SparseStage],
        dense: &mut [DenseStage],
        norm: f32,
    ) -> Result<Pushed> {
        stage::clip_global_norm(sparse, dense, norm);
        self.push(work, sparse, dense)
    }

    /// The job-wide number of a stream, unique among all workers. Random numbers in a step are derived from it.
    fn job_stream(&self, stream: u32) -> u32 {
        stream
    }

    /// Whether the tables are in this process: then [`push`](Communicator::push) itself counts the gradients that they refuse.
    fn counts_refusals(&self) -> bool {
        false
    }

    /// Takes the next step of a stream: the number that its push carries. The number is used up, whether the step is pushed or
    /// not.
    fn next_step(&self, stream: u32) -> Result<Step>;

    /// Returns the last step number that was taken, because the step failed before it was pushed. The number is used again.
    fn return_step(&self, _stream: u32) {}

    /// A stream begins a pass over its data. If streams step together, this waits until all of them begin one.
    fn begin(&self, _stream: u32) -> Result<()> {
        Ok(())
    }

    /// Whether all streams of a worker step together, so that each stream waits for the others.
    fn steps_together(&self) -> bool {
        false
    }

    /// A stream has ended its pass: the others continue without it.
    fn finish(&self, _stream: u32) -> Result<()> {
        Ok(())
    }

    /// Ends the implicit pass that steps outside of a dataset form; with `also_empty` also if this worker made no step in it.
    /// Other workers then no longer wait for this one until its next step.
    fn finish_implicit(&self, _also_empty: bool) -> Result<()> {
        Ok(())
    }

    /// This process is shutting down without departing: requests in flight fail at once. The servers are told nothing, so a
    /// restarted process resumes where this one was.
    fn abandon(&self) {}

    /// Sends everything that is queued and waits until it is applied; also fetches the newest values of the other workers.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Flushes and tells the servers that this worker departs.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// The error of a background thread, for every training thread.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    message: String,
    recalled: Option<u32>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Failure { message: openfleet_core::error::report(error), recalled: error.recalled() }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure.recalled {
            Some(rank) => Error::Recalled { rank },
            None => Error::Background { message: failure.message },
        }
    }
}

/// Creates the communicator of a mode: one of the three places that distinguish modes.
///
/// The tables must be those that `remote` was created with: geo mode keeps copies of them.
pub fn for_mode(
    remote: Remote,
    strategy: &Strategy,
    sparse: &[(String, SparseSpec)],
    dense: &[(String, DenseSpec, Vec<f32>)],
) -> Result<Box<dyn Communicator>> {
    let remote = remote.with_float_width(strategy.float_width()).with_row_staleness(strategy.row_staleness());
    Ok(match *strategy.settings() {
        ModeSettings::Sync | ModeSettings::HalfAsync => Box::new(Stepwise::new(remote)),
        ModeSettings::Async(settings) => Box::new(Async::new(remote, settings)),
        ModeSettings::Hybrid(settings) => Box::new(Hybrid::new(remote, settings)),
        ModeSettings::Geo(settings) => {
            let dense = dense.iter().map(|(name, spec, _)| (name.clone(), spec.clone()));
            Box::new(Geo::new(remote, settings, sparse.to_vec(), dense.collect())?)
        }
        ModeSettings::Collective(_) => {
            return Err(Error::WrongMode { what: "a job with servers", mode: strategy.mode().to_string() });
        }
    })
}
