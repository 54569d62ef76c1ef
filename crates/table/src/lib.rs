//! What a server keeps and how one row changes: tables, optimizers, schedules and initializers.
//!
//! State only. Nothing here opens a file or a socket, reads a clock or starts a thread (this crate's `clippy.toml` makes that a
//! build error); tables are driven by calls, from any number of threads. A table does not know the mode, the rank or the number
//! of servers: its rows depend only on its seed, its keys and what was pushed.
//!
//! Start at [`SparseTable`] and [`DenseTable`]; [`Optimizer`] is the arithmetic that both use. Other modules have what a server
//! must remember between requests: which work it has applied ([`Ledger`]), the gradients of a step that other streams have not
//! pushed yet ([`Aggregate`]), and the rows that workers have not fetched yet ([`Changed`]). What is saved of all this is in
//! [`checkpoint`].

pub mod accessor;
mod admission;
pub mod aggregate;
pub mod checkpoint;
pub mod clip;
mod dense;
mod error;
pub mod geo;
mod initializer;
pub mod ledger;
mod optimizer;
mod push;
mod regularizer;
mod schedule;
pub mod sparse;

pub use accessor::{Accessor, CtrFields, CtrOptions, Row, RowStorage};
pub use admission::Admission;
pub use aggregate::Aggregate;
pub use clip::Clip;
pub use dense::{DenseSpec, DenseTable};
pub use error::{Error, Result};
pub use geo::Changed;
pub use initializer::{Fans, Initializer};
pub use ledger::Ledger;
pub use optimizer::{
    Adadelta, Adagrad, Adam, AdamW, Adamax, DecayedAdagrad, Ftrl, Lamb, Momentum, Optimizer, RmsProp, RowwiseAdagrad,
    Sgd,
};
pub use push::{NonFinite, PushReport, ShowClick, Shrunk};
pub use regularizer::Regularizer;
pub use schedule::Schedule;
pub use sparse::{Existing, Missing, Scratch, SparseSpec, SparseTable};
