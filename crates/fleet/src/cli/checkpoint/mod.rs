//! Looking into checkpoints: `inspect`, `lookup`, `diff`, `reshard`, `export`, `verify`. One command a file.
//!
//! None of them needs a program or a job; a checkpoint says what it holds. Rows are read a few thousand at a time.

pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod inspect;
pub(crate) mod lookup;
pub(crate) mod reshard;
pub(crate) mod verify;

use std::sync::Arc;

use openfleet_dist::storage::{Directories, Stores};
use openfleet_table::accessor::Row;
use openfleet_table::checkpoint::{Columns, Manifest, SparseEntry, Storage, read_manifest};

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
    fn each_row(&self, table: &SparseEntry, mut look: impl FnMut(&Row<'_>) -> Result<()>) -> Result<()> {
        for part in &table.parts {
            let mut columns = Columns::open(self.storage.as_ref(), &self.manifest, table, part)
                .map_err(failed("reading", &self.address))?;
            let mut stopped = Ok(());
            loop {
                let more = columns.next(|row| {
                    if stopped.is_ok() {
                        stopped = look(row);
                    }
                    Ok(())
                });
                std::mem::replace(&mut stopped, Ok(()))?;
                if !more.map_err(failed("reading", &self.address))? {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn failed(action: &'static str, address: &str) -> impl Fn(openfleet_table::Error) -> Error {
    move |source| openfleet_dist::Error::Checkpoint { action, address: address.into(), source }.into()
}

/// The length of a vector.
fn norm(weights: &[f32]) -> f64 {
    weights.iter().map(|&weight| f64::from(weight) * f64::from(weight)).sum::<f64>().sqrt()
}
