//! `openfleet reshard`: rewrites a checkpoint in another number of parts.

use std::num::NonZeroU32;

use clap::Args;
use openfleet_core::placement::Buckets;
use openfleet_dist::fresh_save_id;
use openfleet_dist::storage::{Addresses, Stores};
use openfleet_table::checkpoint;

use super::open;
use crate::cli::output::{bytes, plural, result};
use crate::error::Result;

/// `openfleet reshard ...`.
#[derive(Debug, Args)]
pub(crate) struct ReshardArgs {
    /// Checkpoint: a directory or bucket.
    #[arg(value_name = "ADDRESS")]
    checkpoint: String,
    /// Address of the new checkpoint.
    #[arg(long, value_name = "ADDRESS")]
    out: String,
    /// Number of parts, ideally the number of servers that will read it. (Any number of servers can read any checkpoint.)
    #[arg(long, alias = "servers", value_name = "N")]
    server_num: NonZeroU32,
    /// Replace an existing checkpoint.
    #[arg(long)]
    replace: bool,
}

pub(crate) fn run(arguments: &ReshardArgs) -> Result<()> {
    let opened = open(&arguments.checkpoint)?;
    let (to, id) = (Addresses.open(&arguments.out)?, fresh_save_id());
    let buckets = Buckets::new(arguments.server_num.get() as usize)?;
    let written =
        checkpoint::reshard(opened.storage.as_ref(), &opened.manifest, to.as_ref(), &id, buckets, arguments.replace)
            .map_err(openfleet_dist::Error::checkpoint("saving to", &arguments.out))?;
    let size = written.files.iter().map(|file| file.bytes).sum();
    result(&format!("{}: {}, {}", arguments.out, plural(buckets.server_count(), "part"), bytes(size)));
    Ok(())
}
