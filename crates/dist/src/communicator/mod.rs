//! When and how pulls and pushes travel. One communicator a file; the engine calls them all the same way.

mod asynchronous;
mod geo;
mod hybrid;
mod local;
mod mapped;
mod remote;
mod stepwise;
mod streams;
mod subset;

pub use asynchronous::Async;
pub use geo::Geo;
pub use hybrid::Hybrid;
pub use local::Local;
pub use mapped::Mapped;
pub use openfleet_table::sparse::Missing;
pub use remote::{Remote, Worker};
pub(crate) use remote::{depart_from, status_of, wait_all};
pub use stepwise::Stepwise;
pub use streams::{Step, Streams};
pub use subset::TableSubset;

use openfleet_core::WorkId;
use openfleet_core::strategy::{ModeSettings, Strategy};
use openfleet_table::{DenseSpec, PushReport, SparseSpec};

use crate::error::{Error, Result};
use crate::stage::{self, DenseStage, SparseStage};

/// What a training thread calls around each of its steps:
///
/// ```text
/// begin -> ( next_step -> pull_sparse, pull_dense -> compute -> push )* -> finish
/// ```
///
/// A step that the servers had applied before this process started is skipped, or computed without being pushed.
///
/// Every method may be called from many training threads at once, each with stages of its own.
pub trait Communicator: Send + Sync {
    /// Fills `rows` of every lookup with the rows of the stage's unique keys.
    fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()>;

    /// Brings every dense copy up to date; a copy that is the newest already is left alone.
    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()>;

    /// Sends the gradients of one step, sparse and dense, and refreshes the dense copies as the mode prescribes. Says how
    /// many were applied and refused, as far as that is known by then.
    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<PushReport>;

    /// As [`push`](Communicator::push), with the gradients scaled down to this norm of them all: where streams step together, of
    /// the mean gradients of them all, else of this step's own.
    fn push_within_norm(
        &self,
        work: WorkId,
        sparse: &mut [SparseStage],
        dense: &mut [DenseStage],
        norm: f32,
    ) -> Result<PushReport> {
        stage::clip_global_norm(sparse, dense, norm);
        self.push(work, sparse, dense)
    }

    /// The job-wide number of a stream: no other worker has it. Chance in a step follows from it.
    fn number_in_job(&self, stream: u32) -> u32 {
        stream
    }

    /// Whether gradients meet their tables in this process: then [`push`](Communicator::push) itself counts what they refuse.
    fn refuses_here(&self) -> bool {
        false
    }

    /// The next step of a stream: the number that its push carries. It is taken, whether it is pushed or not.
    fn next_step(&self, stream: u32) -> Result<Step>;

    /// The step that was taken last came to nothing before it was pushed: its number is free.
    fn give_back_step(&self, _stream: u32) {}

    /// A stream begins a pass over its data. Where streams step together, this waits until all of them begin one.
    fn begin(&self, _stream: u32) -> Result<()> {
        Ok(())
    }

    /// Whether all streams of a worker take every step together, so that each of them is waited for.
    fn steps_together(&self) -> bool {
        false
    }

    /// A stream has come to the end of its pass: the others go on without it.
    fn finish(&self, _stream: u32) -> Result<()> {
        Ok(())
    }

    /// Steps outside of a pass form one of their own; it ends here. Nobody waits for this worker any more before its next step.
    fn finish_implicit(&self) -> Result<()> {
        Ok(())
    }

    /// This process gives up: what waits for servers fails at once. The servers are told nothing, so that a restarted process
    /// continues where this one was.
    fn abandon(&self) {}

    /// Everything sent and applied: what was queued is pushed, what was changed elsewhere is here.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// This worker is done: it departs.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Why a background thread gave up, for every training thread.
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

/// Chooses the communicator of a mode: one of the three places that look at it.
///
/// The tables are those that `remote` was made with: geo keeps copies of them.
pub fn for_mode(
    remote: Remote,
    strategy: &Strategy,
    sparse: &[(String, SparseSpec)],
    dense: &[(String, DenseSpec, Vec<f32>)],
) -> Result<Box<dyn Communicator>> {
    let remote = remote.with_float_width(strategy.float_width());
    Ok(match *strategy.settings() {
        ModeSettings::Sync | ModeSettings::HalfAsync => Box::new(Stepwise::new(remote)),
        ModeSettings::Async(settings) => Box::new(Async::new(remote, settings)),
        ModeSettings::Hybrid(settings) => Box::new(Hybrid::new(remote, settings)),
        ModeSettings::Geo(settings) => {
            let dense = dense.iter().map(|(name, spec, _)| (name.clone(), spec.clone()));
            Box::new(Geo::new(remote, settings, sparse.to_vec(), dense.collect())?)
        }
    })
}
