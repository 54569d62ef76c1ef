//! Runs programs: a plan is a compiled program, a pass is one run over a dataset, the executor owns both.

mod batch_threads;
mod counters;
mod executor;
mod options;
pub(crate) mod pass;
mod plan;
pub(crate) mod states;

pub use executor::Executor;
pub use options::{BatchView, EachBatch, Observation, OnPause, Pause, RunOptions, RunReport};
pub use plan::{LookedUp, OutsideGradients, Plan, Returned};
