//! Checkpoints of a whole job: promises P8 (all or nothing), P9 (corruption is named), P10 (a full disk is survivable), and
//! the cut that makes them worth something.

mod faults;
mod harness;
mod loading;
mod pushing;
