//! Whole clusters in one process: servers, workers and the modes between them, against training in one process.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

mod asynchronous;
mod geo;
mod harness;
mod resuming;
mod sync;
