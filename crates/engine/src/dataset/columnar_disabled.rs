//! Parquet and Arrow files without the Cargo feature `arrow`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::error::{Error, Result};
use super::file_reader::RowChecks;
use super::format::csv::Resolved;
use super::records::Records;

/// Fails: this build cannot read them.
pub(crate) fn read_file(
    _format: &Resolved,
    rows: &RowChecks<'_>,
    _bytes: &Arc<AtomicU64>,
    _records: &mut Records,
    _emit: impl FnMut(&mut Records) -> bool,
) -> Result<()> {
    Err(Error::no_columnar(rows.file))
}
