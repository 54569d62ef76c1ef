//! The work that a worker does between a pull and a push: programs, ops, the executor, datasets and models.
//!
//! Build a network with a [`Net`], choose how to train it ([`Minimize`]), and run it with an [`Executor`] on the values of a [`Scope`].
//! This crate starts no processes and knows no roles; the communicator knows where the tables are.
//!
//! # Examples
//!
//! ```
//! use std::sync::Arc;
//!
//! use openfleet_engine::op::Activation;
//! use openfleet_engine::{DType, Executor, Feed, Minimize, Net, Scope};
//! use openfleet_table::{Optimizer, Sgd};
//!
//! # fn main() -> openfleet_engine::Result<()> {
//! let mut net = Net::with_seed(1);
//! let x = net.data("x", &[-1, 2], DType::F32)?;
//! let label = net.data("label", &[-1, 1], DType::F32)?;
//! let prediction = net.fc(x, 1, Activation::Linear)?;
//! let errors = net.square_error_cost(prediction, label)?;
//! let loss = net.mean(errors)?;
//! Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1).minimize(&mut net.main, loss)?;
//!
//! let mut executor = Executor::new(Arc::new(Scope::new()));
//! executor.run_startup(&net.startup)?;
//! let feed = Feed::new().floats("x", 2, vec![1.0, 2.0])?.floats("label", 1, vec![3.0])?;
//! let before = executor.run(&net.main, feed.clone(), &[loss])?;
//! let after = executor.run(&net.main, feed, &[loss])?;
//! assert!(after[0].scalar() < before[0].scalar());
//! # Ok(())
//! # }
//! ```
//!
//! # Module groups
//!
//! A group may use the groups below it and never one above it:
//!
//! ```text
//! saved                    checkpoints, inference models, the predictor, ONNX export
//! run          models      plans, passes and the executor;  ready-made networks
//! graph                    programs, layers, ops (shape rule, forward, backward, ONNX form)
//! memory       kernel      arenas, the views that ops read and write, scopes;  loops and matrix products
//! value                    tensors, shapes, feeds
//! error
//! dataset      synthetic   batches from files;  generated data
//! ```
//!
//! `op` is inside `graph`: a program's node holds an [`Op`](op::Op), and an op's layer adds nodes to a program, so the two cannot be
//! separated. Ops compute through the views of [`memory`], which therefore knows neither programs nor plans. `models` uses only `graph` and
//! below.

pub mod dataset;
mod error;
mod graph;
mod kernel;
pub mod memory;
pub mod models;
mod run;
mod saved;
pub mod synthetic;
mod value;

pub use error::{Error, Result};
pub use graph::{
    Backward, Exception, Minimize, Net, Node, ParamAttr, ParameterAttributes, Program, RowLife, SparseAttributes, Var,
    Variable, VariableKind, op,
};
pub use kernel::matrix;
pub use memory::{Scope, StepTimes};
pub use run::{
    BatchView, EachBatch, Executor, LookedUp, Observation, OnPause, OutsideGradients, Pause, Plan, Returned,
    RunOptions, RunReport,
};
pub use saved::{InferenceModel, Predictor, onnx};
pub use value::{DType, Dim, Elements, Feed, Shape, Tensor};
