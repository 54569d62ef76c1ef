//! What a process is, from what it was told: every variable missing, malformed or contradicted, word for word.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod arguments;
mod documented;
mod mpi;
mod table;
