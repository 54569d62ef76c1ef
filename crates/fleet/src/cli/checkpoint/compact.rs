//! `openfleet compact`: merges the delta saves of a checkpoint into one full save.

use clap::Args;
use openfleet_dist::fresh_save_id;
use openfleet_table::checkpoint;

use super::{Opened, open};
use crate::cli::output::{bytes, plural, result};
use crate::error::Result;

/// `openfleet compact ...`.
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// The checkpoint. Concurrent readers see either the old or the new one, and a job can keep saving deltas to it.
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
