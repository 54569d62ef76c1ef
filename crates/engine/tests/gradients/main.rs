//! Every op alone: its numbers against a calculation by hand, its gradient against finite differences, its complaints.

mod compare;
mod elementwise;
mod harness;
mod matrix;
mod shapes;
