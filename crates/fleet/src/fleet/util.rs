//! `fleet.util`: helpers that PaddlePaddle scripts call by this name.

use std::io::Write;

use openfleet_dist::Reduce;

use super::Fleet;
use crate::error::Result;

/// Helpers that PaddlePaddle scripts call as `fleet.util`.
#[derive(Clone, Copy)]
pub struct Util<'a> {
    fleet: &'a Fleet,
}

impl<'a> Util<'a> {
    pub(super) fn new(fleet: &'a Fleet) -> Self {
        Util { fleet }
    }

    /// PaddlePaddle's name of [`Fleet::split_files`].
    pub fn get_file_shard<'f, T>(&self, files: &'f [T]) -> Result<&'f [T]> {
        self.fleet.split_files(files)
    }

    /// Prints a line to standard output on the worker of this rank, and nothing on others.
    pub fn print_on_rank(&self, message: &str, rank: usize) {
        if self.fleet.is_worker() && self.fleet.topology().rank() == rank {
            // A closed pipe is not an error.
            let _ = writeln!(std::io::stdout().lock(), "{message}");
        }
    }

    /// [`Fleet::all_reduce`].
    pub fn all_reduce(&self, op: Reduce, values: &mut [f64]) -> Result<()> {
        self.fleet.all_reduce(op, values)
    }

    /// [`Fleet::barrier_worker`].
    pub fn barrier(&self) -> Result<()> {
        self.fleet.barrier_worker()
    }
}
