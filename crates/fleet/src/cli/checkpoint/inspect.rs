//! `openfleet inspect`: the contents of a checkpoint.

use std::collections::BTreeMap;

use clap::Args;
use openfleet_core::Key;
use openfleet_table::checkpoint::{SparseEntry, read_dense};
use serde::Serialize;

use super::{Opened, each_row, norm, open};
use crate::cli::output::{bytes, count, plural, result};
use crate::error::Result;

/// `openfleet inspect ...`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// Checkpoint: a directory or bucket.
    #[arg(value_name = "ADDRESS")]
    checkpoint: String,
    /// Number of hottest keys to show per table, by shows if they are counted, otherwise by the norm of the row.
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    hottest: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Summary<'a> {
    checkpoint: &'a str,
    id: &'a str,
    job: &'a str,
    mode: &'a str,
    step: u64,
    servers: u32,
    workers: u32,
    /// Steps of the saves that it builds on, oldest first.
    builds_on: Vec<u64>,
    bytes: u64,
    tables: Vec<Table<'a>>,
    parameters: Vec<Parameter<'a>>,
    applied: BTreeMap<u32, u64>,
    data: &'a serde_json::Value,
}

#[derive(Debug, Serialize)]
struct Table<'a> {
    name: &'a str,
    rows: u64,
    dim: usize,
    storage: &'static str,
    optimizer: &'static str,
    step: u64,
    bytes: u64,
    mean_norm: f64,
    largest_norm: f64,
    show: Option<f64>,
    click: Option<f64>,
    hottest: Vec<Hot>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Hot {
    key: Key,
    norm: f64,
    show: Option<f32>,
    click: Option<f32>,
}

impl Hot {
    fn heat(&self) -> f64 {
        self.show.map_or(self.norm, f64::from)
    }
}

#[derive(Debug, Serialize)]
struct Parameter<'a> {
    name: &'a str,
    shape: &'a [usize],
    optimizer: &'static str,
    step: u64,
    norm: f64,
}

pub(crate) fn run(arguments: &InspectArgs) -> Result<()> {
    let opened = open(&arguments.checkpoint)?;
    let manifest = &opened.manifest;
    let tables = manifest.sparse.iter().map(|table| look_at(&opened, table, arguments.hottest));
    let tables = tables.collect::<Result<Vec<_>>>()?;
    let dense = opened.read(read_dense)?;
    let parameters = manifest.dense.iter().map(|entry| Parameter {
        name: &entry.name,
        shape: &entry.spec.shape,
        optimizer: entry.spec.optimizer.name(),
        step: entry.step,
        norm: dense.get(&entry.name).map_or(0.0, |parameter| norm(&parameter.values)),
    });
    let summary = Summary {
        checkpoint: &opened.address,
        id: &manifest.id,
        job: &manifest.job,
        mode: &manifest.mode,
        step: manifest.step,
        servers: manifest.servers,
        workers: manifest.workers,
        builds_on: manifest.layers.iter().map(|layer| layer.step).collect(),
        bytes: manifest.all_files().map(|(_, file)| file.bytes).sum(),
        tables,
        parameters: parameters.collect(),
        applied: manifest.work.positions(),
        data: &manifest.data,
    };
    match arguments.json {
        true => result(&serde_json::to_string(&summary).unwrap_or_default()),
        false => print(&summary),
    }
    Ok(())
}

fn look_at<'a>(opened: &Opened, table: &'a SparseEntry, most: usize) -> Result<Table<'a>> {
    let (mut norms, mut largest, mut counted) = (0.0, 0.0f64, None::<(f64, f64)>);
    let mut hottest: Vec<Hot> = Vec::with_capacity(most + 1);
    each_row(opened, table, |row| {
        let norm = norm(row.weights);
        norms += norm;
        largest = largest.max(norm);
        if let Some(ctr) = row.ctr {
            let (show, click) = counted.get_or_insert_default();
            *show += f64::from(ctr.show);
            *click += f64::from(ctr.click);
        }
        let hot = Hot { key: row.key, norm, show: row.ctr.map(|ctr| ctr.show), click: row.ctr.map(|ctr| ctr.click) };
        let at = hottest.partition_point(|other| other.heat() >= hot.heat());
        if at < most {
            hottest.insert(at, hot);
            hottest.truncate(most);
        }
        Ok(())
    })?;
    Ok(Table {
        name: &table.name,
        rows: table.rows,
        dim: table.spec.dim,
        storage: table.spec.storage.name(),
        optimizer: table.spec.optimizer.name(),
        step: table.step,
        bytes: opened.manifest.bytes_of(table),
        mean_norm: norms / table.rows.max(1) as f64,
        largest_norm: largest,
        show: counted.map(|(show, _)| show),
        click: counted.map(|(_, click)| click),
        hottest,
    })
}

fn print(summary: &Summary<'_>) {
    result(&format!(
        "{}: step {} of job {} (mode {}, {}, {}), {}",
        summary.checkpoint,
        count(summary.step),
        summary.job,
        summary.mode,
        plural(summary.servers as usize, "server"),
        plural(summary.workers as usize, "worker"),
        bytes(summary.bytes),
    ));
    if !summary.builds_on.is_empty() {
        let steps: Vec<_> = summary.builds_on.iter().map(|&step| count(step)).collect();
        result(&format!("changes since step {}, in {}", steps.join(", then "), plural(steps.len() + 1, "save")));
    }
    for table in &summary.tables {
        let counted = match (table.show, table.click) {
            (Some(show), Some(click)) => format!(", show {show:.0}, click {click:.0}"),
            _ => String::new(),
        };
        result(&format!(
            "table `{}`: {} rows of {} {} by {}, step {}, {}; norm {:.4} on average, {:.4} at most{counted}",
            table.name,
            count(table.rows),
            table.dim,
            table.storage,
            table.optimizer,
            count(table.step),
            bytes(table.bytes),
            table.mean_norm,
            table.largest_norm,
        ));
        for hot in &table.hottest {
            let counted = match (hot.show, hot.click) {
                (Some(show), Some(click)) => format!(", show {show}, click {click}"),
                _ => String::new(),
            };
            result(&format!("  key {}: norm {:.4}{counted}", hot.key, hot.norm));
        }
    }
    for parameter in &summary.parameters {
        result(&format!(
            "parameter `{}` {:?} by {}, step {}; norm {:.4}",
            parameter.name,
            parameter.shape,
            parameter.optimizer,
            count(parameter.step),
            parameter.norm
        ));
    }
    if !summary.data.is_null() {
        result(&format!("data {}", summary.data));
    }
}
