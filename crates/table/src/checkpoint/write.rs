//! Writing the tables of one server: its rows column by column, its dense blocks, and the work it has applied.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::columns::{Column, put_floats, put_stats, put_weights};
use super::file::{FileEntry, FileWriter};
use super::manifest::{SparseEntry, SparsePart, Work};
use super::storage::Storage;
use crate::dense::DenseSpec;
use crate::error::{Error, Result};
use crate::sparse::Cut;

/// The tables of one server at the time of a snapshot.
#[derive(Debug)]
pub struct TableCuts {
    /// Number of the server.
    pub server: u32,
    /// The buckets of its keys.
    pub buckets: Range<usize>,
    /// Its sparse tables, in the program's order.
    pub sparse: Vec<SparseCut>,
    /// Its dense blocks.
    pub dense: Vec<DenseCut>,
    /// The work it has applied.
    pub work: Work,
    /// How far the job is, if this server knows; JSON that this crate does not interpret.
    pub position: serde_json::Value,
}

impl TableCuts {
    /// Removes tables and parameters that are not named; an empty list keeps all.
    pub fn keep_only(&mut self, names: &[String]) {
        if !names.is_empty() {
            self.sparse.retain(|table| names.contains(&table.name));
            self.dense.retain(|block| names.contains(&block.parameter));
        }
    }

    /// The save that all its rows have changed since.
    fn since(&self) -> Result<Option<String>> {
        let mut since = self.sparse.iter().map(|table| (table.cut.since(), table.without_state));
        let Some((first, _)) = since.next() else { return Ok(None) };
        if first.is_some() && self.sparse.iter().any(|table| table.without_state) {
            return Err(Error::DeltaWithout { what: "the optimizer's state" });
        }
        match since.all(|(since, _)| since == first) {
            true => Ok(first.map(str::to_owned)),
            false => Err(Error::PartsDisagree { what: "the save before".into() }),
        }
    }

    /// Removes optimizer state, which prediction does not need.
    pub fn drop_state(&mut self) {
        self.sparse.iter_mut().for_each(|table| table.without_state = true);
        for block in &mut self.dense {
            block.spec = block.spec.without_state();
            block.state = Vec::new();
        }
    }
}

/// A sparse table at the time of a snapshot.
#[derive(Debug)]
pub struct SparseCut {
    /// Name of the table.
    pub name: String,
    /// Its rows.
    pub cut: Cut,
    /// Whether optimizer state is left out.
    pub without_state: bool,
}

/// A dense block at the time of a snapshot; dense values are small and copied.
#[derive(Debug, Clone)]
pub struct DenseCut {
    /// The parameter that it is a block of.
    pub parameter: String,
    /// Offset in the parameter.
    pub offset: usize,
    /// Spec of the whole parameter.
    pub spec: DenseSpec,
    /// Its values.
    pub values: Vec<f32>,
    /// The optimizer's slots, one after the other.
    pub state: Vec<f32>,
    /// Number of updates so far.
    pub step: u64,
}

/// The files that one server has written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerPart {
    /// Number of the server.
    pub server: u32,
    /// The save that its rows have changed since; `None` if it wrote all rows.
    #[serde(default)]
    pub since: Option<String>,
    /// Its sparse tables, with one part each.
    pub sparse: Vec<SparseEntry>,
    /// Its dense blocks, in the order of their file.
    pub dense: Vec<DenseBlock>,
    /// The floats of those blocks, values and slots, block by block; becomes part of the one dense file.
    pub dense_file: Option<FileEntry>,
    /// Its other files.
    pub files: Vec<FileEntry>,
    /// The work it had applied.
    pub work: Work,
    /// How far the job was; only the first server knows.
    #[serde(default)]
    pub position: serde_json::Value,
}

/// A dense block that was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenseBlock {
    /// The parameter that it is a block of.
    pub parameter: String,
    /// Offset in the parameter.
    pub offset: usize,
    /// Length in floats.
    pub length: usize,
    /// Spec of the whole parameter.
    pub spec: DenseSpec,
    /// Number of updates so far.
    pub step: u64,
}

/// Directory of a save's files until it is complete.
pub(super) fn temporary(id: &str) -> String {
    format!(".saving-{id}")
}

/// Rows read while a lock is held: about a tenth of a millisecond.
const ROWS_AT_ONCE: u32 = 2048;

/// Writes one server's part of the save `id`, which has begun. From then on its tables record what changes after it.
pub fn write_part(storage: &dyn Storage, id: &str, cuts: TableCuts) -> Result<ServerPart> {
    let directory = temporary(id);
    let mut files = Vec::new();
    let since = cuts.since()?;
    let mut sparse = Vec::with_capacity(cuts.sparse.len());
    for (number, table) in cuts.sparse.into_iter().enumerate() {
        sparse.push(write_sparse(storage, id, number, &cuts.buckets, table, &mut files)?);
    }
    let (dense_file, dense) = write_dense(storage, &directory, cuts.server, cuts.dense)?;
    storage.sync_directory(&directory).map_err(Error::storage("sync", &directory))?;
    Ok(ServerPart {
        server: cuts.server,
        since,
        sparse,
        dense,
        dense_file,
        files,
        work: cuts.work,
        position: cuts.position,
    })
}

fn write_sparse(
    storage: &dyn Storage,
    id: &str,
    number: usize,
    buckets: &Range<usize>,
    SparseCut { name, mut cut, without_state }: SparseCut,
    files: &mut Vec<FileEntry>,
) -> Result<SparseEntry> {
    let directory = &temporary(id);
    let spec = if without_state { cut.spec().without_state() } else { cut.spec().clone() };
    let readable: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).take(60).collect();
    let folder = format!("{number:02}-{readable}");
    let whole_folder = format!("{directory}/{folder}");
    storage.make_directory(&whole_folder).map_err(Error::storage("create", &whole_folder))?;
    let (first, last) = (buckets.start, buckets.end.saturating_sub(1));
    let prefix = format!("{folder}/{first:04}-{last:04}");
    let mut columns = Vec::new();
    for column in Column::ROWS.into_iter().filter(|column| column.width(&spec) > 0) {
        let path = format!("{prefix}.{}.npy", column.name());
        let mut writer = FileWriter::create(storage, directory, &path)?;
        writer.write(&column.header(&spec, cut.rows()))?;
        columns.push((column, writer, Vec::new()));
    }
    loop {
        // Bytes are collected while a shard is locked, and written when it is not.
        let more = cut.read(ROWS_AT_ONCE, |row| {
            for (column, _, bytes) in &mut columns {
                match column {
                    Column::Keys => bytes.extend_from_slice(&row.key.to_le_bytes()),
                    Column::Weights => put_weights(bytes, row.weights, spec.storage),
                    Column::State => put_floats(bytes, row.state),
                    Column::Stats => put_stats(bytes, row.stamp, row.ctr),
                    Column::Removed => {}
                }
            }
        });
        for (_, writer, bytes) in &mut columns {
            writer.write(bytes)?;
            bytes.clear();
        }
        if !more {
            break;
        }
    }
    for (_, writer, _) in columns {
        files.push(writer.finish()?);
    }
    let removed = cut.removed().len() as u64;
    if removed > 0 {
        let mut writer = FileWriter::create(storage, directory, &format!("{prefix}.{}.npy", Column::Removed.name()))?;
        writer.write(&Column::Removed.header(&spec, removed))?;
        cut.removed().iter().try_for_each(|key| writer.write(&key.to_le_bytes()))?;
        files.push(writer.finish()?);
    }
    storage.sync_directory(&whole_folder).map_err(Error::storage("sync", &whole_folder))?;
    let part = SparsePart { buckets: (first as u32, last as u32), rows: cut.rows(), prefix, removed };
    let slots = spec.optimizer.slot_names().iter().map(|&slot| slot.to_owned()).collect();
    if !without_state {
        cut.remember(id);
    }
    let (step, stamp, rows) = (cut.step(), cut.stamp(), cut.table_rows());
    Ok(SparseEntry { name, spec, step, stamp, rows, slots, parts: vec![part] })
}

fn write_dense(
    storage: &dyn Storage,
    directory: &str,
    server: u32,
    cuts: Vec<DenseCut>,
) -> Result<(Option<FileEntry>, Vec<DenseBlock>)> {
    if cuts.is_empty() {
        return Ok((None, Vec::new()));
    }
    let mut writer = FileWriter::create(storage, directory, &format!("dense.part-{server}"))?;
    let mut bytes = Vec::new();
    let mut blocks = Vec::with_capacity(cuts.len());
    for DenseCut { parameter, offset, spec, values, state, step } in cuts {
        bytes.clear();
        put_floats(&mut bytes, &values);
        put_floats(&mut bytes, &state);
        writer.write(&bytes)?;
        blocks.push(DenseBlock { parameter, offset, length: values.len(), spec, step });
    }
    Ok((Some(writer.finish()?), blocks))
}
