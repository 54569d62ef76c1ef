//! The vocabulary of all other crates: keys, batches, placement, strategy, topology, metrics, errors and bfloat16.
//!
//! Plain values and arithmetic. This crate opens nothing, reads no environment, has no clock and starts no thread; its
//! `clippy.toml` makes that a build error. Whatever needs a file, a socket or a thread is in a later crate of the chain `core
//! <- table <- dist <- engine <- fleet <- python`.

mod batch;
pub mod bfloat16;
pub mod error;
pub mod key;
pub mod metrics;
pub mod placement;
pub mod strategy;
pub mod topology;
mod unique;
mod work;

pub use batch::{Batch, Column, Field, FieldKind, Schema};
pub use error::{Error, Hint, Hinted, Result};
pub use key::Key;
pub use placement::{Grouping, Placement};
pub use strategy::{Mode, Strategy, StrategyOptions};
pub use topology::{Endpoint, Incarnation, JobId, Role, Topology};
pub use unique::Unique;
pub use work::WorkId;
