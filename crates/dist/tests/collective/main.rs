//! Collective jobs: the algorithms on every number of ranks, real sockets, and ranks that are missing, wrong or lost.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

mod algorithms;
mod group;
mod tcp;
