//! The work a worker does between a pull and a push: programs, ops, the executor, datasets and models.
//!
//! Build a network through a [`Net`], choose how to train it ([`Minimize`]), and run it with an [`Executor`] on the values
//! of a [`Scope`]. This room starts no processes and knows no roles; where the tables are is the communicator's affair.

pub mod arena;
pub mod backward;
mod checkpoint;
mod counters;
pub mod dataset;
pub mod error;
pub mod executor;
pub mod feed;
pub mod inference;
mod kernel;
pub mod matrix;
pub mod minimize;
pub mod models;
pub mod names;
pub mod net;
pub mod onnx;
pub mod op;
mod pass;
pub mod plan;
pub mod predictor;
pub mod program;
pub mod scope;
pub mod shape;
pub mod synthetic;
pub mod tensor;

pub use error::{Error, Result};
pub use executor::{Executor, RunOptions, RunReport};
pub use feed::Feed;
pub use inference::InferenceModel;
pub use minimize::Minimize;
pub use net::{Net, ParamAttr};
pub use predictor::Predictor;
pub use program::{Program, RowLife, Var};
pub use scope::Scope;
pub use shape::Shape;
pub use tensor::{DType, Tensor};
