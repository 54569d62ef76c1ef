//! Replacement of `own_file` on systems without Unix owners and modes: every call is an error that says so.
//!
//! MPI jobs on such a system meet at an address instead (`OPENFLEET_RENDEZVOUS`).

use std::path::{Path, PathBuf};

/// A file that only this user can read; not available here.
pub(super) struct OwnFile;

impl OwnFile {
    /// Always fails.
    pub(super) fn write(_temporary: &Path, _name: &str, _bytes: &[u8]) -> std::io::Result<Self> {
        Err(unsupported())
    }
}

/// Always fails.
pub(super) fn own_directory(_temporary: &Path) -> std::io::Result<PathBuf> {
    Err(unsupported())
}

/// Always 0.
pub(super) fn parent_id() -> u32 {
    0
}

fn unsupported() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::Unsupported, "set `OPENFLEET_RENDEZVOUS` to `host:port` on this system")
}
