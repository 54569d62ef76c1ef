//! `openfleet lookup`: the rows of one key in a checkpoint.

use clap::Args;
use openfleet_core::Key;
use openfleet_core::key::salt;
use openfleet_core::placement::bucket_of;
use openfleet_table::checkpoint::SparseEntry;
use serde::Serialize;

use super::{Opened, each_row_of, open};
use crate::cli::output::{remark, result};
use crate::error::Result;

/// `openfleet lookup ...`.
#[derive(Debug, Args)]
pub(crate) struct LookupArgs {
    /// Checkpoint: a directory or bucket.
    #[arg(value_name = "ADDRESS")]
    checkpoint: String,
    /// Feature id.
    #[arg(value_name = "KEY")]
    key: Key,
    /// Slot of the id, for tables whose keys are salted by slot.
    #[arg(long, value_name = "NAME")]
    slot: Option<String>,
    /// Look only in this table.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Print one JSON object per table and line.
    #[arg(long)]
    json: bool,
}

/// One row.
#[derive(Debug, Serialize)]
struct Found<'a> {
    table: &'a str,
    key: Key,
    bucket: usize,
    stamp: u32,
    weights: Vec<f32>,
    state: Vec<(&'a str, Vec<f32>)>,
    show: Option<f32>,
    click: Option<f32>,
}

pub(crate) fn run(arguments: &LookupArgs) -> Result<()> {
    let mut opened = open(&arguments.checkpoint)?;
    if let Some(name) = &arguments.table {
        let only = opened.table(name)?.clone();
        opened.manifest.sparse = vec![only];
    }
    let mut any = false;
    for table in &opened.manifest.sparse {
        let salted = arguments.slot.as_deref().filter(|_| table.spec.salted);
        match find(&opened, table, salted.map_or(arguments.key, |slot| arguments.key ^ salt(slot)))? {
            Some(found) => {
                any = true;
                print(&found, arguments.json);
            }
            None => {
                let of_slot = salted.map_or(String::new(), |slot| format!(" of slot `{slot}`"));
                remark(&format!("table `{}` has no row of key {}{of_slot}", table.name, arguments.key));
                if table.spec.salted && salted.is_none() {
                    remark("its keys are ids salted by slot: name the slot of the id with `--slot`");
                }
            }
        }
    }
    if !any {
        remark("a key without a row gets its first values from the table's initializer when it is next seen");
    }
    Ok(())
}

fn find<'a>(opened: &Opened, table: &'a SparseEntry, key: Key) -> Result<Option<Found<'a>>> {
    let (mut found, bucket) = (None, bucket_of(key));
    each_row_of(opened, table, bucket..bucket + 1, |row| {
        if row.key == key {
            let slots = table.slots.iter().zip(row.state.chunks(table.spec.dim.max(1)));
            found = Some(Found {
                table: &table.name,
                key,
                bucket,
                stamp: row.stamp,
                weights: row.weights.to_vec(),
                state: slots.map(|(slot, values)| (slot.as_str(), values.to_vec())).collect(),
                show: row.ctr.map(|ctr| ctr.show),
                click: row.ctr.map(|ctr| ctr.click),
            });
        }
        Ok(())
    })?;
    Ok(found)
}

fn print(found: &Found<'_>, json: bool) {
    if json {
        return result(&serde_json::to_string(found).unwrap_or_default());
    }
    let Found { table, key, bucket, stamp, .. } = found;
    result(&format!("table `{table}`, key {key}, bucket {bucket}, last touched at {stamp}"));
    result(&format!("  weights {:?}", found.weights));
    for (slot, values) in &found.state {
        result(&format!("  {slot} {values:?}"));
    }
    if let (Some(show), Some(click)) = (found.show, found.click) {
        result(&format!("  show {show}, click {click}"));
    }
}
