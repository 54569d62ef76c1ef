//! The built `openfleet` program on tiny data: what it prints, what it writes and how it ends.

mod data;
mod generating;
mod inferring;
mod interrupting;
mod messages;
mod training;
