//! Every op alone: its numbers against a calculation by hand, its gradient against finite differences, its errors.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

mod compare;
mod constants;
mod elementwise;
mod given;
mod harness;
mod interactions;
mod layers;
mod lookup;
mod losses;
mod matrix;
mod norms;
mod recurrent;
mod reductions;
mod sequences;
mod shapes;
mod windows;
