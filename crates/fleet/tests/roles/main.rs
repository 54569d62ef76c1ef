//! The role of a process from its variables: every variable missing, malformed or contradicted, with the whole message.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod arguments;
mod documented;
mod mpi;
mod table;
