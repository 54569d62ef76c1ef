//! `fleet.util`: small things that scripts know by this name.

use std::io::Write;

use openfleet_dist::Reduce;

use super::Fleet;
use crate::error::Result;

/// Small things that scripts need.
#[derive(Clone, Copy)]
pub struct Util<'a> {
    fleet: &'a Fleet,
}

impl<'a> Util<'a> {
    pub(super) fn new(fleet: &'a Fleet) -> Self {
        Util { fleet }
    }

    /// This worker's part of a list of files: [`Fleet::split_files`] by its other name.
    pub fn get_file_shard<'f, T>(&self, files: &'f [T]) -> Result<&'f [T]> {
        self.fleet.split_files(files)
    }

    /// Prints a line to standard output on the worker of this rank, and nothing on others.
    pub fn print_on_rank(&self, message: &str, rank: usize) {
        if self.fleet.is_worker() && self.fleet.topology().rank() == rank {
            // A reader who has closed the pipe is no error.
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

/// Part `rank` of `count` contiguous runs, of which the first `len % count` have one more.
pub(super) fn part<T>(files: &[T], rank: usize, count: usize) -> &[T] {
    let (each, more) = (files.len() / count, files.len() % count);
    let begin = rank * each + rank.min(more);
    let end = begin + each + usize::from(rank < more);
    &files[begin..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_go_to_workers_in_contiguous_runs_and_the_first_get_one_more() {
        let files = ["a", "b", "c", "d", "e", "f", "g"];
        let parts = |count: usize, files: &'static [&'static str]| -> Vec<Vec<&str>> {
            (0..count).map(|rank| part(files, rank, count).to_vec()).collect()
        };
        // Seven over three: 3, 2, 2.
        assert_eq!(
            parts(3, &["a", "b", "c", "d", "e", "f", "g"]),
            [vec!["a", "b", "c"], vec!["d", "e"], vec!["f", "g"]]
        );
        // Fewer files than workers: some have none.
        assert_eq!(parts(3, &["a", "b"]), [vec!["a"], vec!["b"], vec![]]);
        // Whatever the count, every file goes to one worker, in order.
        for count in 1..10 {
            assert_eq!((0..count).flat_map(|rank| part(&files, rank, count)).collect::<Vec<_>>(), files.each_ref());
        }
    }
}
