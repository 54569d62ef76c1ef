//! Whole clusters in one process: servers, workers and every mode, compared with training in one process.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

mod asynchronous;
mod collective;
mod geo;
mod harness;
mod outside;
mod resuming;
mod small_rows;
mod sync;
