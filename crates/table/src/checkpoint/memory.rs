//! A checkpoint in memory: for tests, and for sending one over a network.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor, Read, Write};
use std::sync::Arc;

use parking_lot::Mutex;

use super::storage::{Sink, Storage};

/// Files in memory. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
}

impl Memory {
    /// No files.
    pub fn new() -> Self {
        Memory::default()
    }

    /// All files with their bytes.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.files.lock().clone()
    }

    /// Creates a file.
    pub fn put(&self, path: &str, bytes: Vec<u8>) {
        self.files.lock().insert(path.to_owned(), bytes);
    }
}

struct Open {
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    path: String,
}

impl Write for Open {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.files.lock().entry(self.path.clone()).or_default().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Open {
    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn inside(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}/") }
}

impl Storage for Memory {
    fn make_directory(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn Sink>> {
        self.put(path, Vec::new());
        Ok(Box::new(Open { files: self.files.clone(), path: path.to_owned() }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn Read + Send>> {
        match self.files.lock().get(path) {
            Some(bytes) => Ok(Box::new(Cursor::new(bytes.clone()))),
            None => Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no file `{path}`"))),
        }
    }

    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        Ok(self.files.lock().get(path).map(|bytes| bytes.len() as u64))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let inside = inside(path);
        let files = self.files.lock();
        let names = files.keys().filter_map(|path| path.strip_prefix(&inside)?.split('/').next());
        Ok(names.map(str::to_owned).collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock();
        if let Some(bytes) = files.remove(from) {
            files.insert(to.to_owned(), bytes);
            return Ok(());
        }
        let (from, to) = (inside(from), inside(to));
        let moved: Vec<String> = files.keys().filter(|path| path.starts_with(&from)).cloned().collect();
        for path in moved {
            if let Some(bytes) = files.remove(&path) {
                files.insert(format!("{to}{}", &path[from.len()..]), bytes);
            }
        }
        Ok(())
    }

    fn sync_directory(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let inside = inside(path);
        self.files.lock().retain(|name, _| name != path && !name.starts_with(&inside));
        Ok(())
    }

    fn name(&self) -> String {
        "memory".into()
    }
}
