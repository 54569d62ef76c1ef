//! Where checkpoints are stored, and how one is opened.
//!
//! ```text
//! address -> Addresses -> Directory    a path, or `file://`
//!                      -> Objects      `s3://`, `gs://`, `az://`: keys of a bucket, each behind a feature of this crate
//! ```
//!
//! The table crate decides what is written and in which order; here it becomes files or objects. Neither knows the contents. A
//! test can give a server other [`Stores`], for example one whose writes fail.

mod addresses;
mod directory;
#[cfg(feature = "objects")]
pub mod objects;
mod written;

use std::sync::Arc;

use openfleet_table::checkpoint::{Manifest, SparseEntry, Storage, read_manifest};

pub use addresses::Addresses;
pub use directory::Directory;

use crate::error::{Error, Result};

/// Opens the storage of an address.
pub trait Stores: Send + Sync {
    /// The storage at an address; it may be empty.
    fn open(&self, address: &str) -> Result<Arc<dyn Storage>>;
}

/// An existing checkpoint, and its manifest.
pub struct Opened {
    /// The address as it was given.
    pub address: Box<str>,
    /// Its files.
    pub storage: Arc<dyn Storage>,
    /// Its manifest.
    pub manifest: Manifest,
    action: &'static str,
}

impl Opened {
    /// Opens the checkpoint at an address. `action` is used in error messages: `loading`, `reading`.
    pub fn new(stores: &dyn Stores, address: &str, action: &'static str) -> Result<Self> {
        let storage = stores.open(address)?;
        let manifest = read_manifest(storage.as_ref()).map_err(Error::checkpoint(action, address))?;
        Ok(Opened { address: address.into(), storage, manifest, action })
    }

    /// A sparse table of the checkpoint. Fails if there is none of this name.
    pub fn table(&self, name: &str) -> Result<&SparseEntry> {
        let tables = &self.manifest.sparse;
        let names = || tables.iter().map(|table| format!("`{}`", table.name)).collect::<Vec<_>>().join(", ");
        let found = tables.iter().find(|table| table.name == name);
        found.ok_or_else(|| Error::NoSuchTable { table: name.to_owned(), names: names() })
    }

    /// Reads something from the checkpoint; adds its address to an error.
    pub fn read<T>(&self, read: impl FnOnce(&dyn Storage, &Manifest) -> openfleet_table::Result<T>) -> Result<T> {
        read(self.storage.as_ref(), &self.manifest).map_err(Error::checkpoint(self.action, &self.address))
    }
}
