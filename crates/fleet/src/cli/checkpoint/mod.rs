//! Looking into checkpoints: `inspect`, `lookup`, `diff`, `reshard`, `compact`, `export`, `verify`. One command a file.
//!
//! None of them needs a program or a job; a checkpoint says what it holds. Rows are read a few thousand at a time.

pub(crate) mod compact;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod inspect;
pub(crate) mod lookup;
pub(crate) mod reshard;
pub(crate) mod verify;

use std::ops::Range;
use std::sync::Arc;

use openfleet_core::placement::BUCKET_COUNT;
use openfleet_dist::storage::{Directories, Stores};
use openfleet_table::accessor::Row;
use openfleet_table::checkpoint::{self, Manifest, SparseEntry, Storage, read_manifest};

use crate::error::{Error, Result};

/// A checkpoint that somebody looks into.
pub(super) struct Opened {
    address: String,
    storage: Arc<dyn Storage>,
    manifest: Manifest,
}

impl Opened {
    fn new(address: &str) -> Result<Self> {
        let storage = Directories.open(address)?;
        let manifest = read_manifest(storage.as_ref()).map_err(failed("reading", address))?;
        Ok(Opened { address: address.to_owned(), storage, manifest })
    }

    fn table(&self, name: &str) -> Result<&SparseEntry> {
        let known =
            || self.manifest.sparse.iter().map(|table| format!("`{}`", table.name)).collect::<Vec<_>>().join(", ");
        self.manifest
            .sparse
            .iter()
            .find(|table| table.name == name)
            .ok_or_else(|| openfleet_dist::Error::NoSuchTable { table: name.to_owned(), names: known() }.into())
    }

    /// Shows every row of a table.
    fn each_row(&self, table: &SparseEntry, look: impl FnMut(&Row<'_>) -> Result<()>) -> Result<()> {
        self.each_row_of(table, 0..BUCKET_COUNT, look)
    }

    /// Shows the rows of some buckets of a table.
    fn each_row_of(
        &self,
        table: &SparseEntry,
        buckets: Range<usize>,
        mut look: impl FnMut(&Row<'_>) -> Result<()>,
    ) -> Result<()> {
        // What is wrong with a file and what is wrong with looking are not told the same way.
        let mut stopped = Ok(());
        let read = checkpoint::each_row(self.storage.as_ref(), &self.manifest, table, buckets, |row| {
            if stopped.is_ok() {
                stopped = look(row);
            }
            Ok(())
        });
        stopped.and(read.map_err(failed("reading", &self.address)))
    }
}

fn failed(action: &'static str, address: &str) -> impl Fn(openfleet_table::Error) -> Error {
    move |source| openfleet_dist::Error::Checkpoint { action, address: address.into(), source }.into()
}

/// The length of a vector.
fn norm(weights: &[f32]) -> f64 {
    weights.iter().map(|&weight| f64::from(weight) * f64::from(weight)).sum::<f64>().sqrt()
}
