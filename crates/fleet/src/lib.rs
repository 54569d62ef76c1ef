//! OpenFleet trains recommendation and CTR models on CPU machines, one or hundreds, from one program.
//!
//! This crate is all that a program needs: it has the API of a job ([`Fleet`]) and re-exports what a program uses of the crates below
//! it. Build a network with [`Net`], describe its data ([`dataset`]), choose an optimizer ([`Minimize`]), and train with an
//! [`Executor`]. In a job of servers and workers every process runs the same program: [`Fleet::init`] finds the role of the
//! process, and [`fleetrun`](launch) starts them all.
//!
//! ```
//! use std::sync::Arc;
//!
//! use openfleet::{Activation, DType, Executor, Feed, Minimize, Net, Optimizer, Scope, Sgd};
//!
//! let mut net = Net::new();
//! let x = net.data("x", &[-1, 2], DType::F32)?; // -1 is the batch
//! let y = net.data("y", &[-1, 1], DType::F32)?;
//! let predicted = net.fc(x, 1, Activation::Linear)?;
//! let cost = net.square_error_cost(predicted, y)?;
//! let loss = net.mean(cost)?;
//! Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1).minimize(&mut net.main, loss)?;
//!
//! let mut executor = Executor::new(Arc::new(Scope::new()));
//! executor.run_startup(&net.startup)?;
//! let feed = || Feed::new().floats("x", 2, vec![1.0, 0.0, 0.0, 1.0])?.floats("y", 1, vec![1.0, -1.0]);
//! let first = executor.run(&net.main, feed()?, &[loss])?[0].scalar();
//! let second = executor.run(&net.main, feed()?, &[loss])?[0].scalar();
//! assert!(second < first);
//! # Ok::<(), openfleet::Error>(())
//! ```
//!
//! # Modules
//!
//! [`role`] finds out the role of a process, [`local_cluster`] has servers and workers inside one process, and [`load`] a worker that
//! computes nothing. [`cli`] is the `openfleet` program and [`launch`] the `fleetrun` program. Nothing in this crate computes: that
//! is the engine's work.

pub mod cli;
pub mod columns;
mod error;
mod evaluation;
mod files;
pub mod fleet;
pub mod job_file;
#[cfg(unix)]
pub mod launch;
pub mod load;
pub mod local_cluster;
pub mod log;
pub mod model;
pub mod model_dir;
mod progress;
pub mod role;
#[cfg(feature = "serve")]
mod serve;
#[cfg(not(feature = "serve"))]
#[path = "serve/disabled.rs"]
mod serve;
pub mod variables;

pub use error::{Error, Result};
pub use fleet::Fleet;

// Networks
pub use openfleet_engine::op::{
    Activation, BatchNormOptions, DenseEmbeddingOptions, EmbeddingOptions, FcOptions, LayerNormOptions, Pooling,
};
pub use openfleet_engine::{DType, Exception, Minimize, Net, ParamAttr, Program, RowLife, Shape, Tensor, Var, models};
pub use openfleet_table::{
    Accessor, Adadelta, Adagrad, Adam, AdamW, Adamax, Admission, Clip, CtrOptions, DecayedAdagrad, Ftrl, Initializer,
    Lamb, Momentum, Optimizer, Regularizer, RmsProp, RowStorage, RowwiseAdagrad, Schedule, Sgd,
};
// Data
pub use openfleet_core::{Batch, Column, Field, FieldKind, Key, Schema};
pub use openfleet_engine::{dataset, synthetic};
// Training and prediction
pub use openfleet_core::metrics;
pub use openfleet_engine::{
    BatchView, Executor, Feed, InferenceModel, Observation, Predictor, RunOptions, RunReport, Scope, StepTimes,
};
// Jobs
pub use openfleet_core::{Endpoint, Hint, Hinted, Mode, Role, Strategy, StrategyOptions, Topology};
pub use openfleet_dist::{Cluster, LoadOptions, Reduce, SaveOptions, Shrink};
pub use openfleet_table::Shrunk;
pub use openfleet_table::checkpoint::Manifest;
