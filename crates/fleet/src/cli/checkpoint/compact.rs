//! `openfleet compact`: one save in place of the several that a checkpoint consists of.

use clap::Args;
use openfleet_dist::fresh_save_id;
use openfleet_table::checkpoint;

use super::{Opened, open};
use crate::cli::output::{bytes, plural, result};
use crate::error::Result;

/// `openfleet compact ...`.
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// The checkpoint. Whoever reads it meanwhile sees the old one or the new one; a job that saves changes goes on.
    #[arg(value_name = "ADDRESS")]
    checkpoint: String,
}

pub(crate) fn run(arguments: &CompactArgs) -> Result<()> {
    let Opened { address, storage, manifest, .. } = open(&arguments.checkpoint)?;
    let size = |manifest: &checkpoint::Manifest| bytes(manifest.all_files().map(|(_, file)| file.bytes).sum());
    let saves = manifest.layers.len() + 1;
    if saves == 1 {
        result(&format!("{address}: one save, {}: nothing to do", size(&manifest)));
        return Ok(());
    }
    let compacted = checkpoint::compact(storage.as_ref(), &manifest, &fresh_save_id());
    let compacted = compacted.map_err(openfleet_dist::Error::checkpoint("saving to", &address))?;
    result(&format!("{address}: {}, {}; now one, {}", plural(saves, "save"), size(&manifest), size(&compacted)));
    Ok(())
}
