//! What the tests and benches of several crates share; a dev-dependency only.

pub mod allocation;
pub mod bench;
pub mod hostile;
pub mod network;
pub mod storage;
