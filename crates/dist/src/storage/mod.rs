//! Where checkpoints are, and how one is opened.
//!
//! ```text
//! address -> Addresses -> Directory    a path, or `file://`
//!                      -> Objects      `s3://`, `gs://`, `az://`: keys of a bucket, each behind a feature of this crate
//! ```
//!
//! The table room says what is written and in which order, here it becomes files or objects; neither knows what is in them.
//! Somebody with other ideas, such as a test that lets writes fail, hands a server other [`Stores`].

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

/// From the address of a checkpoint to its storage.
pub trait Stores: Send + Sync {
    /// The storage at an address; nothing has to be there yet.
    fn open(&self, address: &str) -> Result<Arc<dyn Storage>>;
}

/// A checkpoint that stands somewhere, and what its manifest says.
pub struct Opened {
    /// Where, as it was asked for.
    pub address: Box<str>,
    /// Its files.
    pub storage: Arc<dyn Storage>,
    /// What they are.
    pub manifest: Manifest,
    action: &'static str,
}

impl Opened {
    /// Opens what stands at an address. `action` says what for, in whatever goes wrong: `loading`, `reading`.
    pub fn new(stores: &dyn Stores, address: &str, action: &'static str) -> Result<Self> {
        let storage = stores.open(address)?;
        let manifest = read_manifest(storage.as_ref()).map_err(Error::checkpoint(action, address))?;
        Ok(Opened { address: address.into(), storage, manifest, action })
    }

    /// A sparse table of it.
    pub fn table(&self, name: &str) -> Result<&SparseEntry> {
        let tables = &self.manifest.sparse;
        let names = || tables.iter().map(|table| format!("`{}`", table.name)).collect::<Vec<_>>().join(", ");
        let found = tables.iter().find(|table| table.name == name);
        found.ok_or_else(|| Error::NoSuchTable { table: name.to_owned(), names: names() })
    }

    /// Reads something of it.
    pub fn read<T>(&self, read: impl FnOnce(&dyn Storage, &Manifest) -> openfleet_table::Result<T>) -> Result<T> {
        read(self.storage.as_ref(), &self.manifest).map_err(Error::checkpoint(self.action, &self.address))
    }
}
