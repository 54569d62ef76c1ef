//! Runs asynchronous work for callers that block.
//!
//! It has its own thread, and the caller waits on a channel, so it does not matter whether the caller's thread belongs to a
//! runtime. It knows nothing about object stores.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use tokio::runtime::{Builder, Runtime};

/// A runtime with one thread. Clones share it; it shuts down with the last of them.
#[derive(Clone)]
pub(super) struct Driver {
    running: Arc<Running>,
}

struct Running(Option<Runtime>);

/// Work in progress.
pub(super) struct Task<T>(Receiver<T>);

impl Driver {
    pub(super) fn new() -> io::Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("openfleet-objects").enable_all().build()?;
        Ok(Driver { running: Arc::new(Running(Some(runtime))) })
    }

    /// Starts some work; it continues whether or not the caller waits for it.
    pub(super) fn start<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Task<T> {
        let (sender, receiver) = channel();
        if let Some(runtime) = &self.running.0 {
            runtime.spawn(async move {
                let _ = sender.send(work.await);
            });
        }
        Task(receiver)
    }
}

impl<T> Task<T> {
    /// Waits for the result.
    pub(super) fn wait(self) -> io::Result<T> {
        // The sender is dropped only if the work panics.
        self.0.recv().map_err(|_| io::Error::other("the work on an object store panicked, which is a bug"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Waiting for its thread is forbidden if this is dropped on a thread of another runtime.
            runtime.shutdown_background();
        }
    }
}
