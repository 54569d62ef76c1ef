//! A checkpoint in a directory on this machine.
//!
//! The table crate decides what is written and in which order; this file writes it to disk. Columns are memory-mapped, not
//! read.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use openfleet_table::checkpoint::{Bytes, Sink, Storage};

use super::written::Written;

/// A directory of this machine.
#[derive(Debug, Clone)]
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    /// The directory at a path; it need not exist yet.
    pub fn new(root: impl AsRef<Path>) -> Self {
        Directory { root: root.as_ref().to_owned() }
    }

    fn at(&self, path: &str) -> PathBuf {
        // Joining an empty path would append a slash, which some file systems reject.
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

fn unless_missing<T>(result: io::Result<T>, missing: T) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(missing),
        result => result,
    }
}

impl Storage for Directory {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.at(path))
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn Sink>> {
        Ok(Box::new(Written::new(File::create(self.at(path))?)))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open(self.at(path))?))
    }

    fn open_at(&self, path: &str, from: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut file = File::open(self.at(path))?;
        file.seek(SeekFrom::Start(from))?;
        Ok(Box::new(file))
    }

    fn map(&self, path: &str) -> io::Result<Bytes> {
        let file = File::open(self.at(path))?;
        // SAFETY: the bytes must not change while they are mapped. A checkpoint's files do not change: they are written under
        // another name, never opened for writing once a manifest names them, and a deleted file exists as long as it is mapped.
        // Truncating such a file by hand ends the process (SIGBUS), as with any mapped file.
        Ok(Box::new(unsafe { Mmap::map(&file)? }))
    }

    fn size(&self, path: &str) -> io::Result<Option<u64>> {
        unless_missing(fs::metadata(self.at(path)).map(|metadata| Some(metadata.len())), None)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let names = fs::read_dir(self.at(path)).and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<io::Result<Vec<_>>>()
        });
        let mut names = unless_missing(names, Vec::new())?;
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        // On other systems a directory cannot be opened as a file, and renames are made durable differently.
        if cfg!(unix) { File::open(self.at(path))?.sync_all() } else { Ok(()) }
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let path = self.at(path);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => unless_missing(fs::remove_dir_all(&path), ()),
            Ok(_) => unless_missing(fs::remove_file(&path), ()),
            Err(error) => unless_missing(Err(error), ()),
        }
    }

    fn name(&self) -> String {
        self.root.display().to_string()
    }
}
