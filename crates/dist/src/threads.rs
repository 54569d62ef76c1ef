//! Threads for reading a checkpoint. The table crate starts no threads itself.

use openfleet_table::Result;
use openfleet_table::checkpoint::Parallelism;

/// One thread per core, but not more than a disk can keep busy.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    count: usize,
}

/// More threads than this only wait for each other and for the disk.
const MOST: usize = 8;

impl Threads {
    /// One thread per core, at most 8.
    pub fn of_this_machine() -> Self {
        Threads { count: std::thread::available_parallelism().map_or(1, usize::from).min(MOST) }
    }
}

impl Parallelism for Threads {
    fn count(&self) -> usize {
        self.count
    }

    fn work(&self, share: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..self.count).map(|number| scope.spawn(move || share(number))).collect();
            let own = share(0);
            // A panic is a bug: propagate it to the caller.
            others.into_iter().fold(own, |so_far, other| {
                let result = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                so_far.and(result)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[test]
    fn every_share_runs_once_and_an_error_is_returned() {
        let parallelism = Threads { count: 5 };
        let done = Mutex::new(Vec::new());
        let work = |fails: Option<usize>| {
            done.lock().clear();
            let share = |number| {
                done.lock().push(number);
                match fails == Some(number) {
                    true => Err(openfleet_table::Error::CutTwice),
                    false => Ok(()),
                }
            };
            let result = parallelism.work(&share);
            done.lock().sort_unstable();
            assert_eq!(*done.lock(), [0, 1, 2, 3, 4]);
            result
        };
        assert_eq!(work(None), Ok(()));
        assert_eq!(work(Some(0)), Err(openfleet_table::Error::CutTwice));
        assert_eq!(work(Some(3)), Err(openfleet_table::Error::CutTwice));
    }
}
