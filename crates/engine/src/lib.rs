//! The work that a worker does between a pull and a push: programs, ops, the executor, datasets and models.
//!
//! Build a network with a [`Net`], choose how to train it ([`Minimize`]), and run it with an [`Executor`] on the values of a [`Scope`].
//! This crate starts no processes and knows no roles; the communicator knows where the tables are.
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
    Backward, Minimize, Net, Node, ParamAttr, ParameterAttributes, Program, RowLife, SparseAttributes, Var, Variable,
    VariableKind, op,
};
pub use kernel::matrix;
pub use memory::Scope;
pub use run::{BatchView, EachBatch, Executor, Observation, OnPause, Pause, Plan, RunOptions, RunReport};
pub use saved::{InferenceModel, Predictor, onnx};
pub use value::{DType, Dim, Elements, Feed, Shape, Tensor};
