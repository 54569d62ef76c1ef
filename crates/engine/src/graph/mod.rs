//! What a network is: variables and ops in order, the layers that add them, and the choice of how to train it.
//!
//! Everything here is plain data; a `Plan` of the `run` group runs it.

mod backward;
mod minimize;
mod names;
mod net;
pub(crate) mod onnx_builder;
pub mod op;
mod program;
pub(crate) mod table_spec;

pub use backward::Backward;
pub use minimize::{Exception, Minimize};
pub use net::{Net, ParamAttr};
pub(crate) use program::describe_data;
pub use program::{Node, ParameterAttributes, Program, RowLife, SparseAttributes, Var, Variable, VariableKind};
