//! The threads that share the matrix products of one batch, for callers that feed one batch at a time (`Executor::run`).
//!
//! A pass over a dataset does not use them: there each thread has a batch of its own. Which part of a product runs on which thread does
//! not change a bit of the result, so a model does not depend on the number of cores.

use std::num::NonZeroUsize;

use rayon_core::{ThreadPool, ThreadPoolBuilder};
use tracing::warn;

/// A pool of threads that is made when it is first needed.
pub(crate) struct BatchThreads {
    count: usize,
    pool: Option<Pool>,
}

struct Pool {
    /// The process that has the threads: a child of `fork` has a copy of this struct, but no threads.
    process: u32,
    threads: ThreadPool,
}

impl BatchThreads {
    /// As many threads as `count`; 1 computes on the calling thread.
    pub(crate) fn new(count: usize) -> Self {
        BatchThreads { count: count.max(1), pool: None }
    }

    /// As many threads as this process has cores.
    pub(crate) fn on_all_cores() -> Self {
        BatchThreads::new(std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
    }

    /// Runs `work`, whose matrix products are divided among the threads. Work that `is_small` stays on the calling thread.
    pub(crate) fn run<R: Send>(&mut self, is_small: bool, work: impl FnOnce() -> R + Send) -> R {
        if is_small || self.count == 1 {
            return work();
        }
        match self.pool() {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }

    /// The threads, which are started if they are not there. `None`, from then on, if the system does not allow them.
    fn pool(&mut self) -> Option<&ThreadPool> {
        let process = std::process::id();
        if let Some(pool) = self.pool.take_if(|pool| pool.process != process) {
            // To drop it would be to wait for threads that only the parent process has.
            std::mem::forget(pool);
        }
        if self.pool.is_none() {
            let builder = ThreadPoolBuilder::new().num_threads(self.count).thread_name(|i| format!("batch-{i}"));
            match builder.build() {
                Ok(threads) => self.pool = Some(Pool { process, threads }),
                Err(error) => {
                    warn!("batches are computed on one thread instead of {}: {error}", self.count);
                    self.count = 1;
                }
            }
        }
        self.pool.as_ref().map(|pool| &pool.threads)
    }
}
