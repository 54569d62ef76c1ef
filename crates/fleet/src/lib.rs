//! The front door: from options and files to a trained model.
//!
//! A program that trains on many machines goes through [`Fleet`]; [`role`] finds out what each of its processes is.
//! [`cli`] is the `openfleet` program with its subcommands; what it is made of stands beside it and can be used without
//! it: [`columns`] says what the lines of a file mean, [`model`] builds the network of a kind and a shape, [`evaluation`]
//! judges it, [`model_dir`] keeps it on disk, [`serve`] answers with it. `launch` is the `fleetrun` program, which starts, watches and ends the
//! processes of a job. Nothing here computes: that is the engine's work.

pub mod cli;
pub mod columns;
pub mod error;
pub mod evaluation;
pub mod files;
pub mod fleet;
pub mod job_file;
#[cfg(unix)]
pub mod launch;
pub mod local_cluster;
pub mod log;
pub mod model;
pub mod model_dir;
pub mod progress;
pub mod role;
pub mod serve;
pub mod variables;

pub use error::{Error, Result};
pub use fleet::Fleet;
