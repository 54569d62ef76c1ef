//! Storages that fail on demand: the n-th operation of a save dies, or the whole process does, or the disk is full.

use std::io::{self, Read, Write};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openfleet_dist::storage::Stores;
use openfleet_table::checkpoint::{Sink, Storage};

/// Which fault happens, and at which operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    Never,
    /// Everything dies before this operation, counted from 0: neither it nor any later one has an effect.
    DiesBefore(u64),
    /// This operation has its effect but reports a failure, and no later one has an effect.
    DiesAfter(u64),
    /// A write leaves half of its bytes, and everything dies.
    DiesHalfway(u64),
    /// From this operation on the disk is full.
    Full(u64),
}

/// A storage that counts its modifying operations, and may fail.
#[derive(Clone)]
pub struct FailingStorage {
    storage: Arc<dyn Storage>,
    fault: Fault,
    count: Arc<AtomicU64>,
    /// Whether the process is killed, by a signal that it cannot catch.
    kills: bool,
}

impl FailingStorage {
    /// Wraps another storage.
    pub fn new(storage: Arc<dyn Storage>, fault: Fault) -> Self {
        FailingStorage { storage, fault, count: Arc::default(), kills: false }
    }

    /// Wraps another storage; kills this process instead of returning an error.
    pub fn killing(storage: Arc<dyn Storage>, fault: Fault) -> Self {
        FailingStorage { kills: true, ..FailingStorage::new(storage, fault) }
    }

    /// Number of operations so far.
    pub fn operations(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn run<T>(&self, is_write: bool, act: impl FnOnce() -> io::Result<T>, half: impl FnOnce()) -> io::Result<T> {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        let dead = || {
            if self.kills {
                // It does not return unless the system refuses the signal, which the waiting test notices.
                let _ = Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status();
            }
            Err(io::Error::other("killed by the test"))
        };
        match self.fault {
            Fault::DiesBefore(at) if number >= at => dead(),
            Fault::DiesAfter(at) if number == at => act().and_then(|_| dead()),
            Fault::DiesAfter(at) if number > at => dead(),
            Fault::DiesHalfway(at) if number == at => {
                half();
                dead()
            }
            Fault::DiesHalfway(at) if number > at => dead(),
            Fault::Full(at) if number >= at && is_write => {
                half();
                Err(io::Error::from_raw_os_error(28))
            }
            _ => act(),
        }
    }
}

struct FailingSink {
    sink: Box<dyn Sink>,
    storage: FailingStorage,
}

impl Write for FailingSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let FailingSink { sink, storage } = self;
        let sink = std::cell::RefCell::new(sink);
        storage.run(
            true,
            || sink.borrow_mut().write(bytes),
            || drop(sink.borrow_mut().write(&bytes[..bytes.len() / 2])),
        )
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for FailingSink {
    fn sync(&mut self) -> io::Result<()> {
        let FailingSink { sink, storage } = self;
        storage.run(false, || sink.sync(), || ())
    }
}

impl Storage for FailingStorage {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        self.run(false, || self.storage.make_directory(path), || ())
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn Sink>> {
        let sink = self.run(false, || self.storage.create(path), || ())?;
        Ok(Box::new(FailingSink { sink, storage: self.clone() }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn Read + Send>> {
        self.storage.open(path)
    }

    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        self.storage.size(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.storage.list(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.run(false, || self.storage.rename(from, to), || ())
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        self.run(false, || self.storage.sync_directory(path), || ())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.run(false, || self.storage.remove(path), || ())
    }

    fn name(&self) -> String {
        format!("{} that fails", self.storage.name())
    }
}

/// The same storage for every address.
pub struct OneStorage(pub Arc<dyn Storage>);

impl Stores for OneStorage {
    fn open(&self, _address: &str) -> openfleet_dist::Result<Arc<dyn Storage>> {
        Ok(self.0.clone())
    }
}
