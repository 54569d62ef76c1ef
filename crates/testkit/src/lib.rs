//! What tests of several crates share; a dev-dependency only.

pub mod hostile;
pub mod network;
pub mod storage;
