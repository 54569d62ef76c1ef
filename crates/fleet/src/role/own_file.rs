//! Files that only one user can read, and other facts about users and processes (Unix).

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use openfleet_dist::handshake::fresh_nonce;

/// A file that only this user can read. It is removed on drop.
pub(super) struct OwnFile(PathBuf);

impl OwnFile {
    /// Writes the file in the user's directory, replacing an existing one.
    pub(super) fn write(temporary: &Path, name: &str, bytes: &[u8]) -> std::io::Result<Self> {
        let directory = own_directory(temporary)?;
        let (path, new) = (directory.join(name), directory.join(format!("{name}.{}.new", std::process::id())));
        let _ = std::fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        // Atomic: write to a temporary name, then rename.
        std::fs::rename(&new, &path)?;
        Ok(OwnFile(path))
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A directory that belongs to this user and that no other user can read.
pub(super) fn own_directory(temporary: &Path) -> std::io::Result<PathBuf> {
    // The owner of a new file is this user; that needs no call to the C library.
    let user = owner_of_new_files(temporary)?;
    let directory = temporary.join(format!("openfleet-{user}"));
    match DirBuilder::new().mode(0o700).create(&directory) {
        Ok(()) => return Ok(directory),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = std::fs::symlink_metadata(&directory)?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(directory);
    }
    let reason = format!("`{}` does not belong to this user alone", directory.display());
    Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, reason))
}

fn owner_of_new_files(temporary: &Path) -> std::io::Result<u32> {
    let unique: String = fresh_nonce().iter().map(|byte| format!("{byte:02x}")).collect();
    let path = temporary.join(format!("openfleet-{unique}"));
    let owner = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.metadata()?.uid();
    std::fs::remove_file(&path)?;
    Ok(owner)
}

/// The id of the parent process.
pub(super) fn parent_id() -> u32 {
    std::os::unix::process::parent_id()
}
