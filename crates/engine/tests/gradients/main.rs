//! Every op alone: its numbers against a calculation by hand, its gradient against finite differences, its complaints.

#![allow(clippy::unwrap_used)] // in helpers of tests, which clippy does not take for tests

mod compare;
mod elementwise;
mod harness;
mod matrix;
mod shapes;
