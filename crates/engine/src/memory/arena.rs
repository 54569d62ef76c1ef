//! The memory of one training thread, and where each value is in it.
//!
//! Every variable of a plan has a location: a column of the batch, a buffer, the thread's copy of a dense parameter, the
//! pulled rows of a sparse table, or a state in the scope. Buffers grow to the largest batch seen and are kept, so a warm
//! step allocates nothing. While an op runs, the buffers it writes are moved out of the arena (a move of three words)
//! and passed to it; everything else is shared. That is how ops get `&mut` outputs beside `&` inputs without `unsafe`.

use openfleet_dist::communicator::PullInFlight;
use openfleet_dist::stage::{DenseStage, SparseStage};

use super::{Buffer, EarlyTrial, State, StepTimes};
use crate::value::{FedDims, Shape};

/// Where a variable's value is during a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueLocation {
    /// A fed column, by position among the plan's feeds.
    Feed(usize),
    /// A buffer of the arena.
    Buffer(usize),
    /// The thread's copy of a dense parameter.
    Dense(usize),
    /// The rows of a sparse table.
    Rows { stage: usize, lookup: usize },
    /// A state in the scope.
    State(usize),
}

/// Where a variable's gradient is accumulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GradientLocation {
    /// A gradient buffer of the arena.
    Buffer(usize),
    /// The gradient of a dense parameter.
    Dense(usize),
    /// The gradients of a sparse table's rows.
    Rows { stage: usize, lookup: usize },
}

/// Where the inputs, outputs and gradients of one op are.
pub(crate) struct NodeLocations {
    /// For panic messages.
    pub(crate) op_name: &'static str,
    pub(crate) inputs: Vec<ValueLocation>,
    /// One buffer per output.
    pub(crate) outputs: Vec<usize>,
    /// Per input: where its gradient is, and the gradient slot that records whether it was written.
    pub(crate) input_gradients: Vec<Option<(GradientLocation, usize)>>,
    /// The same per output.
    pub(crate) output_gradients: Vec<Option<(GradientLocation, usize)>>,
    pub(crate) lookups: Vec<LookupInputs>,
}

/// The shapes of what one op reads and writes.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeShapes {
    pub(crate) inputs: Vec<Shape>,
    pub(crate) outputs: Vec<Shape>,
}

/// The shapes of a program for one set of fed shapes; only for programs whose shapes are known when they run.
#[derive(Debug, Default)]
pub(crate) struct ShapeSet {
    /// The shapes of the feeds, which identify the set.
    pub(crate) fed: Vec<Shape>,
    /// Per op, as far as they have been inferred.
    pub(crate) nodes: Vec<NodeShapes>,
}

/// The inputs of one lookup, and where the slot's ids start among the ids of the table's stage.
pub(crate) struct LookupInputs {
    /// The input that is the table.
    pub(crate) table: usize,
    /// The input that is the slot.
    pub(crate) slot: usize,
    /// The feeds whose ids come first.
    pub(crate) before: Vec<usize>,
}

/// How far the rows of the next batch are, while the batch before is trained.
#[derive(Default)]
pub(crate) enum NextRows {
    /// The next batch is not known.
    #[default]
    Unknown,
    /// Its ids are deduplicated.
    Prepared,
    /// They are requested.
    Requested(PullInFlight),
    /// They are there.
    Pulled,
}

/// The memory of one training thread.
#[derive(Default)]
pub struct Arena {
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) gradients: Vec<Vec<f32>>,
    pub(crate) dense: Vec<DenseStage>,
    pub(crate) sparse: Vec<SparseStage>,
    /// The stages of the next batch, as far as `next_rows` says.
    pub(crate) sparse_ahead: Vec<SparseStage>,
    pub(crate) next_rows: NextRows,
    pub(crate) states: Vec<State>,
    /// Running statistics, while they are averaged over the ranks of a collective job.
    pub(crate) statistics: Vec<f32>,
    /// The column of the batch that each feed of the plan reads.
    pub(crate) feeds: Vec<usize>,
    /// The dimensions that the caller gave for each feed, if any.
    pub(crate) fed_dims: FedDims,
    /// The shapes of the batches of late, the newest first; empty for a program whose shapes are known before it runs.
    pub(crate) shape_sets: Vec<ShapeSet>,
    /// Whether it was said that there are too many of them.
    pub(crate) is_shape_limit_reported: bool,
    /// Whether a gradient has been written in this step, per gradient slot of the plan.
    pub(crate) written: Vec<bool>,
    /// Reused between ops: the outputs of the running op.
    pub(crate) outputs: Vec<Buffer>,
    /// Reused between ops: the input gradients of the running op.
    pub(crate) taken: Vec<TakenGradient>,
    /// Reused between ops: scratch memory of the running op.
    pub(crate) scratch: Vec<f32>,
    /// Nanoseconds spent per op, forward and backward, if profiling is on.
    pub(crate) profile: Option<Vec<u64>>,
    /// Time of steps since the pass last read and reset it.
    pub(crate) times: StepTimes,
    pub(crate) early_trial: EarlyTrial,
}

impl Arena {
    pub(crate) fn take_gradient(&mut self, location: GradientLocation) -> Vec<f32> {
        std::mem::take(self.gradient_mut(location))
    }

    pub(crate) fn gradient_mut(&mut self, location: GradientLocation) -> &mut Vec<f32> {
        match location {
            GradientLocation::Buffer(i) => &mut self.gradients[i],
            GradientLocation::Dense(i) => &mut self.dense[i].gradient,
            GradientLocation::Rows { stage, lookup } => &mut self.sparse[stage].lookups[lookup].gradients,
        }
    }

    pub(crate) fn gradient(&self, location: GradientLocation) -> &[f32] {
        match location {
            GradientLocation::Buffer(i) => &self.gradients[i],
            GradientLocation::Dense(i) => &self.dense[i].gradient,
            GradientLocation::Rows { stage, lookup } => &self.sparse[stage].lookups[lookup].gradients,
        }
    }
}

/// A gradient buffer that was moved out of the arena for the running op.
#[derive(Debug, Default)]
pub(crate) struct TakenGradient {
    pub(crate) slot: usize,
    pub(crate) values: Vec<f32>,
    pub(crate) written: bool,
}
