//! Commands on checkpoints: `inspect`, `lookup`, `diff`, `reshard`, `compact`, `export`, `verify`. One command per file.
//!
//! None of them needs a program or a job: a checkpoint describes itself. Rows are read a few thousand at a time.

pub(crate) mod compact;
pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod inspect;
pub(crate) mod lookup;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "parquet_disabled.rs"]
mod parquet;
pub(crate) mod reshard;
pub(crate) mod verify;

use std::ops::Range;

use openfleet_core::placement::BUCKET_COUNT;
use openfleet_dist::storage::{Addresses, Opened};
use openfleet_table::accessor::Row;
use openfleet_table::checkpoint::{self, SparseEntry};

use crate::error::{Error, Result};

/// An opened checkpoint.
fn open(address: &str) -> Result<Opened> {
    Ok(Opened::new(&Addresses, address, "reading")?)
}

/// Calls a function with every row of a table.
fn each_row(opened: &Opened, table: &SparseEntry, look: impl FnMut(&Row<'_>) -> Result<()>) -> Result<()> {
    each_row_of(opened, table, 0..BUCKET_COUNT, look)
}

/// Calls a function with the rows of some buckets of a table.
fn each_row_of(
    opened: &Opened,
    table: &SparseEntry,
    buckets: Range<usize>,
    mut look: impl FnMut(&Row<'_>) -> Result<()>,
) -> Result<()> {
    let read = checkpoint::each_row(opened.storage.as_ref(), &opened.manifest, table, buckets, |row| {
        look(row).map_err(Stopped::Looking)
    });
    read.map_err(|stopped| match stopped {
        Stopped::Reading(error) => openfleet_dist::Error::checkpoint("reading", &opened.address)(error).into(),
        Stopped::Looking(error) => error,
    })
}

/// Distinguishes an error of the checkpoint from an error of the function that gets the rows.
enum Stopped {
    Reading(openfleet_table::Error),
    Looking(Error),
}

impl From<openfleet_table::Error> for Stopped {
    fn from(error: openfleet_table::Error) -> Self {
        Stopped::Reading(error)
    }
}

/// The Euclidean norm of a vector.
fn norm(weights: &[f32]) -> f64 {
    weights.iter().map(|&weight| f64::from(weight) * f64::from(weight)).sum::<f64>().sqrt()
}
