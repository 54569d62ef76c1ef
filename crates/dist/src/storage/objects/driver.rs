//! Runs what is asynchronous for callers that wait.
//!
//! A thread of its own, and a channel that the caller waits on: so it does not matter whether the caller's thread belongs to a
//! runtime already. It knows nothing of object stores.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use tokio::runtime::{Builder, Runtime};

/// A thread that drives what is begun. Clones share it; it ends with the last of them.
#[derive(Clone)]
pub(super) struct Driver {
    running: Arc<Running>,
}

struct Running(Option<Runtime>);

/// Something that was begun.
pub(super) struct Task<T>(Receiver<T>);

impl Driver {
    pub(super) fn new() -> io::Result<Self> {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("openfleet-objects").enable_all().build()?;
        Ok(Driver { running: Arc::new(Running(Some(runtime))) })
    }

    /// Begins something; it goes on whether or not anybody waits for it.
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
    /// Waits until it is done.
    pub(super) fn wait(self) -> io::Result<T> {
        // Only a panic in the work drops the sender.
        self.0.recv().map_err(|_| io::Error::other("the work on an object store panicked, which is a bug"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Waiting for its thread would be forbidden where this is dropped on a thread of another runtime.
            runtime.shutdown_background();
        }
    }
}
