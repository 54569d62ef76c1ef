//! What a worker does between a pull and a push: datasets give batches, a Program and its Executor train on them.
//!
//! This crate starts no processes of its own but a dataset's `pipe_command`, and reads no environment.

pub mod dataset;
