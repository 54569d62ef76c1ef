//! Where a checkpoint's bytes go: a directory, as seen from inside.
//!
//! Paths are relative to the checkpoint's own directory and use `/`. Whoever implements this opens files, or keeps bytes
//! in memory or in a bucket, or fails on purpose. Names that a save gives and takes are decided elsewhere (`commit.rs`).

use std::fmt;
use std::io::{self, Read, Write};

use crate::error::Result;

/// Files of one checkpoint.
pub trait Storage: Send + Sync {
    /// Makes a directory and those above it; one that is there is fine.
    fn make_directory(&self, path: &str) -> io::Result<()>;

    /// A new file, or an empty one in place of an old one.
    fn create(&self, path: &str) -> io::Result<Box<dyn Sink>>;

    /// A file, from its beginning.
    fn open(&self, path: &str) -> io::Result<Box<dyn Read + Send>>;

    /// A file, from some byte on.
    fn open_at(&self, path: &str, from: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut file = self.open(path)?;
        io::copy(&mut (&mut file).take(from), &mut io::sink())?;
        Ok(file)
    }

    /// All bytes of a file, for looking things up in it. Where the storage can, they are read when they are first looked at;
    /// here they are read at once.
    fn map(&self, path: &str) -> io::Result<Bytes> {
        let mut bytes = Vec::new();
        self.open(path)?.read_to_end(&mut bytes)?;
        Ok(Box::new(bytes))
    }

    /// Bytes of a file; `None` where there is none.
    fn size(&self, path: &str) -> io::Result<Option<u64>>;

    /// The names in a directory, sorted; none where there is no such directory.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;

    /// Gives a file or a directory another name, in one step. A file takes the place of another one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes names last: those of the files in a directory.
    fn sync_directory(&self, path: &str) -> io::Result<()>;

    /// Removes a file, or a directory with all that is in it; what is not there is fine.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// What people call the checkpoint: its path or address.
    fn name(&self) -> String;
}

/// The bytes of a file, wherever they are.
pub type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// A file being written, front to back.
pub trait Sink: Write + Send {
    /// Makes what was written last.
    fn sync(&mut self) -> io::Result<()>;
}

/// What a storage said, in a form that can be compared and kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageError {
    /// What kind of failure.
    pub kind: io::ErrorKind,
    /// In the storage's words.
    pub message: String,
    /// What may help, where the storage knows.
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
        // A storage that has a remedy to offer wraps one of these.
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

/// Those who do a large piece of work side by side. This room starts no threads: whoever has some hands them in.
pub trait Parallelism: Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// Lets each do its share, by number; the first error counts.
    fn work(&self, share: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()>;
}

/// Whoever calls.
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
