//! `openfleet verify`: every byte against its checksum.

use clap::Args;
use openfleet_table::checkpoint;

use super::{Opened, failed};
use crate::cli::output::{bytes, count, plural, result};
use crate::error::Result;

/// `openfleet verify ...`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The checkpoint.
    #[arg(value_name = "DIR")]
    checkpoint: String,
}

pub(crate) fn run(arguments: &VerifyArgs) -> Result<()> {
    let opened = Opened::new(&arguments.checkpoint)?;
    let read =
        checkpoint::verify(opened.storage.as_ref(), &opened.manifest).map_err(failed("reading", &opened.address))?;
    let files = plural(opened.manifest.all_files().count(), "file");
    result(&format!("{}: whole: {files}, {}, step {}", opened.address, bytes(read), count(opened.manifest.step)));
    Ok(())
}
