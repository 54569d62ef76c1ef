//! The built `openfleet` program on tiny data: what it prints, what it writes and how it ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod data;
mod generating;
mod http;
mod inferring;
mod interrupting;
mod limits;
mod looking;
mod memory;
mod messages;
mod openings;
mod own_model;
mod planning;
mod resuming;
mod serving;
mod slots;
mod small_rows;
mod storage;
mod training;
