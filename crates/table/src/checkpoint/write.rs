//! Writing what one server keeps: its rows column by column, its dense blocks, and what it has applied.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::columns::{Column, put_floats, put_stats};
use super::file::{FileEntry, FileWriter};
use super::manifest::{SparseEntry, SparsePart, Work};
use super::storage::Storage;
use crate::dense::DenseSpec;
use crate::error::{Error, Result};
use crate::sparse::Cut;

/// What one server keeps, at the moment of a cut.
#[derive(Debug)]
pub struct TableCuts {
    /// Which server.
    pub server: u32,
    /// The buckets whose keys it keeps.
    pub buckets: Range<usize>,
    /// Its sparse tables, in the program's order.
    pub sparse: Vec<SparseCut>,
    /// Its dense blocks.
    pub dense: Vec<DenseCut>,
    /// What it has applied.
    pub work: Work,
    /// How far the job is, where this server knows; plain JSON, which this crate does not look into.
    pub position: serde_json::Value,
}

impl TableCuts {
    /// Forgets tables and parameters that are not named, unless none is.
    pub fn keep_only(&mut self, names: &[String]) {
        if !names.is_empty() {
            self.sparse.retain(|table| names.contains(&table.name));
            self.dense.retain(|block| names.contains(&block.parameter));
        }
    }

    /// The save since which all its rows have changed.
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

    /// Leaves the optimizer's state out: what prediction needs is the rest.
    pub fn drop_state(&mut self) {
        self.sparse.iter_mut().for_each(|table| table.without_state = true);
        for block in &mut self.dense {
            block.spec = block.spec.without_state();
            block.state = Vec::new();
        }
    }
}

/// A sparse table at the moment of a cut.
#[derive(Debug)]
pub struct SparseCut {
    /// What people call it.
    pub name: String,
    /// Its rows.
    pub cut: Cut,
    /// Whether the optimizer's state is left out.
    pub without_state: bool,
}

/// A dense block at the moment of a cut: dense values are few, and copied.
#[derive(Debug, Clone)]
pub struct DenseCut {
    /// Which parameter it is a block of.
    pub parameter: String,
    /// Where it begins in that.
    pub offset: usize,
    /// Of the whole parameter.
    pub spec: DenseSpec,
    /// Its values.
    pub values: Vec<f32>,
    /// The optimizer's slots, one after the other.
    pub state: Vec<f32>,
    /// Updates so far.
    pub step: u64,
}

/// What one server has written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerPart {
    /// Which server.
    pub server: u32,
    /// The save since which its rows have changed; none where it wrote all of them.
    #[serde(default)]
    pub since: Option<String>,
    /// Its sparse tables, with a part each.
    pub sparse: Vec<SparseEntry>,
    /// Its dense blocks, in the order of their file.
    pub dense: Vec<DenseBlock>,
    /// Floats of those, values and slots, block by block; becomes part of the one dense file.
    pub dense_file: Option<FileEntry>,
    /// Its other files.
    pub files: Vec<FileEntry>,
    /// What it had applied.
    pub work: Work,
    /// How far the job was, as the first server knows it.
    #[serde(default)]
    pub position: serde_json::Value,
}

/// A dense block that was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenseBlock {
    /// Which parameter it is a block of.
    pub parameter: String,
    /// Where it begins in that.
    pub offset: usize,
    /// How long it is.
    pub length: usize,
    /// Of the whole parameter.
    pub spec: DenseSpec,
    /// Updates so far.
    pub step: u64,
}

/// Where the files of a save are until it is complete.
pub(super) fn temporary(id: &str) -> String {
    format!(".saving-{id}")
}

/// Rows read out with one lock held: a tenth of a millisecond or so.
const ROWS_AT_ONCE: u32 = 2048;

/// Writes one server's part of the save `id`, which has begun. From then on its tables know what changes after it.
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
                    Column::Weights => put_floats(bytes, row.weights),
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
