//! Checkpoints of a whole job: promises P8 (all or nothing), P9 (corruption is named), P10 (a full disk is survivable), and the
//! consistent snapshot behind them.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)] // helpers outside `#[test]` functions are tests too

mod faults;
mod harness;
#[cfg(unix)]
mod killed;
mod loading;
#[cfg(feature = "objects")]
mod objects;
mod pushing;
mod reading;
