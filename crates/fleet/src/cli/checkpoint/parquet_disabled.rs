//! Replacement of `parquet` in a build without that feature: an error that says so.

use std::path::Path;

use openfleet_table::checkpoint::SparseEntry;

use super::Opened;
use crate::error::{Error, Result};

/// Always fails.
pub(super) fn write(_: &Opened, _: &SparseEntry, _: &Path) -> Result<()> {
    Err(Error::NotBuilt { what: "`openfleet export --format parquet`", feature: "parquet" })
}
