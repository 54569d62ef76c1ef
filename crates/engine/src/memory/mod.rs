//! Where values are kept: the arena of a training thread, the views through which ops use it, and the scope that all threads share.
//!
//! Nothing here knows a program, a plan or an op.

mod arena;
mod early_trial;
mod scope;
mod times;
mod views;

pub use arena::Arena;
pub(crate) use arena::{
    GradientLocation, LookupInputs, NextRows, NodeLocations, NodeShapes, ShapeSet, TakenGradient, ValueLocation,
};
pub(crate) use early_trial::{EarlyTrial, TrialResult};
pub(crate) use scope::{CounterBackup, dense_rule, sparse_rule};
pub use scope::{Scope, State};
pub use times::StepTimes;
pub use views::{Buffer, Gradient, Gradients, Ids, Inputs, Outputs, RowsView};
