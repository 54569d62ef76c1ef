//! Movement: how a worker's pulls and pushes reach the tables.
//!
//! A worker stages what it wants to read and what it has computed ([`stage`]), and hands the stages to a
//! [`Communicator`]; whether the tables stand in the same process or on a hundred servers is the communicator's affair.
//! This room knows no models and no programs.

pub mod communicator;
pub mod error;
pub mod stage;

pub use communicator::Communicator;
pub use error::{Error, Result};
