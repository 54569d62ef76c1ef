//! When and how pulls and pushes travel. One communicator a file; the engine calls them all the same way.

mod local;

pub use local::Local;
pub use openfleet_table::sparse::Missing;

use openfleet_core::WorkId;
use openfleet_table::PushReport;

use crate::error::Result;
use crate::stage::{DenseStage, SparseStage};

/// What a training thread calls around each of its steps:
///
/// ```text
/// pull_dense -> ( pull_sparse -> compute -> push )*
/// ```
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
}
