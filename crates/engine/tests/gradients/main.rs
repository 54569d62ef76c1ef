//! Every op alone: its numbers against a calculation by hand, its gradient against finite differences, its complaints.

mod elementwise;
mod harness;
