//! `openfleet diff`: the differences between two checkpoints.

use std::collections::HashMap;

use clap::Args;
use openfleet_core::Key;
use openfleet_core::placement::BUCKET_COUNT;
use openfleet_table::checkpoint::{SparseEntry, read_dense};
use serde::Serialize;

use super::{Opened, each_row_of, open};
use crate::cli::output::{count, result};
use crate::error::Result;

/// `openfleet diff ...`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The older checkpoint.
    #[arg(value_name = "ADDRESS")]
    before: String,
    /// The newer checkpoint.
    #[arg(value_name = "NEWER_ADDRESS")]
    after: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct Difference {
    /// Tables and parameters that only one checkpoint has, or that have different shapes.
    only_before: Vec<String>,
    only_after: Vec<String>,
    other_shape: Vec<String>,
    steps: (u64, u64),
    tables: Vec<TableDifference>,
    parameters: Vec<ParameterDifference>,
}

/// Rows are compared by their weights.
#[derive(Debug, Default, Serialize)]
struct TableDifference {
    name: String,
    same: u64,
    changed: u64,
    added: u64,
    removed: u64,
    largest_change: f32,
}

#[derive(Debug, Serialize)]
struct ParameterDifference {
    name: String,
    changed: usize,
    of: usize,
    largest_change: f32,
}

pub(crate) fn run(arguments: &DiffArgs) -> Result<()> {
    let (before, after) = (open(&arguments.before)?, open(&arguments.after)?);
    let mut difference = Difference { steps: (before.manifest.step, after.manifest.step), ..Difference::default() };
    tables(&before, &after, &mut difference)?;
    parameters(&before, &after, &mut difference)?;
    match arguments.json {
        true => result(&serde_json::to_string(&difference).unwrap_or_default()),
        false => print(&difference),
    }
    Ok(())
}

fn tables(before: &Opened, after: &Opened, difference: &mut Difference) -> Result<()> {
    for old in &before.manifest.sparse {
        match after.manifest.sparse.iter().find(|new| new.name == old.name) {
            None => difference.only_before.push(old.name.clone()),
            Some(new) if new.spec.dim != old.spec.dim => difference.other_shape.push(old.name.clone()),
            Some(new) => difference.tables.push(rows(before, old, after, new)?),
        }
    }
    let known = |name: &String| before.manifest.sparse.iter().any(|old| old.name == *name);
    let new = after.manifest.sparse.iter().map(|table| &table.name).filter(|name| !known(name));
    difference.only_after.extend(new.cloned());
    Ok(())
}

/// About how many rows of one checkpoint are in memory at a time.
const ROWS_AT_ONCE: u64 = 4_000_000;

fn rows(before: &Opened, old: &SparseEntry, after: &Opened, new: &SparseEntry) -> Result<TableDifference> {
    let mut found = TableDifference { name: old.name.clone(), ..TableDifference::default() };
    let passes = (old.rows.div_ceil(ROWS_AT_ONCE).max(1) as usize).min(BUCKET_COUNT);
    for pass in 0..passes {
        let buckets = BUCKET_COUNT * pass / passes..BUCKET_COUNT * (pass + 1) / passes;
        let mut rows: HashMap<Key, Vec<f32>> = HashMap::new();
        each_row_of(before, old, buckets.clone(), |row| {
            rows.insert(row.key, row.weights.to_vec());
            Ok(())
        })?;
        each_row_of(after, new, buckets, |row| {
            match rows.remove(&row.key).map(|old| largest_change(&old, row.weights)) {
                None => found.added += 1,
                Some(None) => found.same += 1,
                Some(Some(change)) => {
                    found.changed += 1;
                    found.largest_change = found.largest_change.max(change);
                }
            }
            Ok(())
        })?;
        found.removed += rows.len() as u64;
    }
    Ok(found)
}

fn parameters(before: &Opened, after: &Opened, difference: &mut Difference) -> Result<()> {
    let (old, mut new) = (before.read(read_dense)?, after.read(read_dense)?);
    for (name, old) in old {
        match new.remove(&name) {
            None => difference.only_before.push(name),
            Some(new) if new.values.len() != old.values.len() => difference.other_shape.push(name),
            Some(new) => difference.parameters.push(ParameterDifference {
                name,
                changed: old.values.iter().zip(&new.values).filter(|(a, b)| a.to_bits() != b.to_bits()).count(),
                of: old.values.len(),
                largest_change: largest_change(&old.values, &new.values).unwrap_or(0.0),
            }),
        }
    }
    difference.only_after.extend(new.into_keys());
    Ok(())
}

/// `None` if all bits are equal.
fn largest_change(old: &[f32], new: &[f32]) -> Option<f32> {
    let changed = old.iter().zip(new).filter(|(a, b)| a.to_bits() != b.to_bits());
    changed.map(|(a, b)| (a - b).abs()).reduce(f32::max)
}

fn print(difference: &Difference) {
    result(&format!("steps {} and {}", count(difference.steps.0), count(difference.steps.1)));
    for (names, what) in [
        (&difference.only_before, "only in the first"),
        (&difference.only_after, "only in the second"),
        (&difference.other_shape, "of another shape"),
    ] {
        names.iter().for_each(|name| result(&format!("`{name}` is {what}")));
    }
    for table in &difference.tables {
        result(&format!(
            "table `{}`: {} rows the same, {} changed (by {} at most), {} new, {} gone",
            table.name,
            count(table.same),
            count(table.changed),
            table.largest_change,
            count(table.added),
            count(table.removed)
        ));
    }
    for parameter in &difference.parameters {
        result(&format!(
            "parameter `{}`: {} of {} values changed, by {} at most",
            parameter.name,
            count(parameter.changed as u64),
            count(parameter.of as u64),
            parameter.largest_change
        ));
    }
}
