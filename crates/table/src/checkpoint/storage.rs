//! Where a checkpoint's bytes are stored: the interface of a directory.
//!
//! Paths are relative to the checkpoint's own directory and use `/`. An implementation may use files, memory, a bucket, or fail
//! on purpose. The names of files are decided elsewhere (`commit.rs`).

use std::fmt;
use std::io::{self, Read, Write};

use crate::error::Result;

/// Files of one checkpoint.
pub trait Storage: Send + Sync {
    /// Creates a directory and its parents. Idempotent.
    fn make_directory(&self, path: &str) -> io::Result<()>;

    /// Creates a file, or truncates an existing one.
    fn create(&self, path: &str) -> io::Result<Box<dyn Sink>>;

    /// Opens a file at its beginning.
    fn open(&self, path: &str) -> io::Result<Box<dyn Read + Send>>;

    /// Opens a file at byte `from`.
    fn open_at(&self, path: &str, from: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut file = self.open(path)?;
        io::copy(&mut (&mut file).take(from), &mut io::sink())?;
        Ok(file)
    }

    /// All bytes of a file, for lookups. A storage may map the file and read it on first use; by default it is read at once.
    fn map(&self, path: &str) -> io::Result<Bytes> {
        let mut bytes = Vec::new();
        self.open(path)?.read_to_end(&mut bytes)?;
        Ok(Box::new(bytes))
    }

    /// Size of a file in bytes; `None` if it does not exist.
    fn size(&self, path: &str) -> io::Result<Option<u64>>;

    /// The names in a directory, sorted; empty if the directory does not exist.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Renames a file or a directory atomically. A file replaces an existing one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Flushes the names in a directory to stable storage (`fsync`).
    fn sync_directory(&self, path: &str) -> io::Result<()>;

    /// Removes a file, or a directory with its contents. Idempotent.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Path or address of the checkpoint, for messages.
    fn name(&self) -> String;
}

/// The bytes of a file, in memory or mapped.
pub type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// A file being written, front to back.
pub trait Sink: Write + Send {
    /// Flushes written data to stable storage (`fsync`).
    fn sync(&mut self) -> io::Result<()>;
}

/// An error of a storage, in a form that can be compared and cloned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageError {
    /// Kind of error.
    pub kind: io::ErrorKind,
    /// Message of the storage.
    pub message: String,
    /// A hint, if the storage has one.
    pub hint: Option<String>,
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StorageError {}

impl From<io::Error> for StorageError {
    fn from(error: io::Error) -> Self {
        // A storage with a hint wraps a `StorageError`.
        match error.get_ref().and_then(|inner| inner.downcast_ref::<StorageError>()) {
            Some(inner) => inner.clone(),
            None => StorageError { kind: error.kind(), message: error.to_string(), hint: None },
        }
    }
}

impl From<StorageError> for io::Error {
    fn from(error: StorageError) -> Self {
        io::Error::new(error.kind, error)
    }
}

/// Runs work in parallel. This crate starts no threads; the caller passes an implementation that has some.
pub trait Parallelism: Sync {
    /// Number of shares, one per thread.
    fn count(&self) -> usize;

    /// Runs `share` once per number below `count`; returns the first error.
    fn work(&self, share: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()>;
}

/// Runs everything on the calling thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sequential;

impl Parallelism for Sequential {
    fn count(&self) -> usize {
        1
    }

    fn work(&self, share: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
        share(0)
    }
}
