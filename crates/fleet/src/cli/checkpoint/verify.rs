//! `openfleet verify`: checks every byte of a checkpoint against its checksum.

use clap::Args;
use openfleet_table::checkpoint;

use super::open;
use crate::cli::output::{bytes, count, plural, result};
use crate::error::Result;

/// `openfleet verify ...`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Checkpoint: a directory or bucket.
    #[arg(value_name = "ADDRESS")]
    checkpoint: String,
}

pub(crate) fn run(arguments: &VerifyArgs) -> Result<()> {
    let opened = open(&arguments.checkpoint)?;
    let read = opened.read(checkpoint::verify)?;
    let files = plural(opened.manifest.all_files().count(), "file");
    result(&format!("{}: intact: {files}, {}, step {}", opened.address, bytes(read), count(opened.manifest.step)));
    Ok(())
}
