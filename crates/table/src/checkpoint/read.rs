//! Reading a checkpoint: completely or partially, by any number of servers.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use openfleet_core::Key;
use openfleet_core::placement::{BUCKET_COUNT, bucket_of};

use super::columns::{Column, take_floats, take_stats, take_weights};
use super::dense;
use super::file::FileReader;
use super::manifest::{Manifest, SparseEntry, SparsePart, Stored};
use super::storage::{Parallelism, Storage};
use crate::accessor::{Accessor, Row};
use crate::dense::DenseSpec;
use crate::error::{Error, Result};
use crate::sparse::{SparseSpec, SparseTable};

/// What a partial load skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeftOut {
    /// Not in the checkpoint: it is initialized.
    Missing {
        /// Table or parameter.
        name: String,
    },
    /// In the checkpoint, but not in the program.
    Extra {
        /// Table or parameter.
        name: String,
    },
    /// Another shape or row layout: it is initialized.
    Shape {
        /// Table or parameter.
        name: String,
    },
    /// Another optimizer: the values are loaded, its state is initialized.
    State {
        /// Table or parameter.
        name: String,
    },
}

/// A comparison of what a program needs with what a checkpoint has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// What was skipped.
    pub left: Vec<LeftOut>,
}

impl Loaded {
    /// Compares; unless `partial`, any difference is an error that names the table or parameter.
    pub fn compare(
        manifest: &Manifest,
        sparse: &[(String, SparseSpec)],
        dense: &[(String, DenseSpec)],
        partial: bool,
    ) -> Result<Self> {
        let mut left = Vec::new();
        let mut differ = |error: Error, what: LeftOut| {
            if partial {
                left.push(what);
                return Ok(());
            }
            Err(error)
        };
        for (name, spec) in sparse {
            let name = name.clone();
            let Some(saved) = manifest.sparse.iter().find(|saved| saved.name == name) else {
                differ(Error::NotSaved { kind: "sparse table", name: name.clone() }, LeftOut::Missing { name })?;
                continue;
            };
            if layout(spec) != layout(&saved.spec) {
                let (expected, got) = (layout(spec).into(), layout(&saved.spec).into());
                differ(Error::SavedShape { name: name.clone(), expected, got }, LeftOut::Shape { name })?;
                continue;
            }
            if spec.salted != saved.spec.salted {
                let (expected, got) = (keys(spec), keys(&saved.spec));
                differ(Error::SavedKeys { name: name.clone(), expected, got }, LeftOut::Shape { name })?;
                continue;
            }
            let (expected, got) = (spec.optimizer.name(), saved.spec.optimizer.name());
            if spec.optimizer.slot_names() != saved.spec.optimizer.slot_names() || expected != got {
                differ(Error::SavedOptimizer { name: name.clone(), expected, got }, LeftOut::State { name })?;
            }
        }
        for (name, spec) in dense {
            let name = name.clone();
            let Some(saved) = manifest.dense.iter().find(|saved| saved.name == name) else {
                differ(Error::NotSaved { kind: "parameter", name: name.clone() }, LeftOut::Missing { name })?;
                continue;
            };
            if spec.shape != saved.spec.shape {
                let (expected, got) = (format!("{:?}", spec.shape).into(), format!("{:?}", saved.spec.shape).into());
                differ(Error::SavedShape { name: name.clone(), expected, got }, LeftOut::Shape { name })?;
                continue;
            }
            let (expected, got) = (spec.optimizer.name(), saved.spec.optimizer.name());
            if spec.optimizer.slot_names() != saved.spec.optimizer.slot_names() || expected != got {
                differ(Error::SavedOptimizer { name: name.clone(), expected, got }, LeftOut::State { name })?;
            }
        }
        let wanted: BTreeSet<&String> =
            sparse.iter().map(|(name, _)| name).chain(dense.iter().map(|(name, _)| name)).collect();
        let saved = manifest.sparse.iter().map(|table| ("sparse table", &table.name));
        for (kind, name) in saved.chain(manifest.dense.iter().map(|parameter| ("parameter", &parameter.name))) {
            if !wanted.contains(name) {
                let name = name.clone();
                differ(Error::NotWanted { kind, name: name.clone() }, LeftOut::Extra { name })?;
            }
        }
        Ok(Loaded { left })
    }

    /// Whether values of this name are loaded.
    pub fn takes_values(&self, name: &str) -> bool {
        !self.left.iter().any(|left| match left {
            LeftOut::Missing { name: left } | LeftOut::Extra { name: left } | LeftOut::Shape { name: left } => {
                left == name
            }
            LeftOut::State { .. } => false,
        })
    }

    /// Whether optimizer state of this name is loaded.
    pub fn takes_state(&self, name: &str) -> bool {
        self.takes_values(name)
            && !self.left.iter().any(|left| matches!(left, LeftOut::State { name: left } if left == name))
    }
}

/// What must be equal for weights to fit, as text.
fn layout(spec: &SparseSpec) -> String {
    let rows = match spec.accessor {
        Accessor::Plain => "plain",
        Accessor::Ctr(_) => "ctr",
    };
    format!("{rows} rows of {} weights", spec.dim)
}

/// The kind of a table's keys, as text.
fn keys(spec: &SparseSpec) -> &'static str {
    if spec.salted { "ids salted by slot" } else { "plain ids" }
}

/// Loads the rows of some buckets into a table, with or without optimizer state; returns how many.
pub fn read_sparse(
    storage: &dyn Storage,
    manifest: &Manifest,
    entry: &SparseEntry,
    buckets: Range<usize>,
    table: &SparseTable,
    with_state: bool,
    parallelism: &dyn Parallelism,
) -> Result<u64> {
    // Keys are distributed evenly.
    table.reserve(rows_there(storage, manifest, entry)?.saturating_mul(buckets.len() as u64) / BUCKET_COUNT as u64);
    let rows = AtomicU64::new(0);
    let parts: Vec<_> = entry.parts.iter().filter(|part| part.meets(&buckets)).collect();
    let total = parts.iter().fold(0u64, |total, part| total.saturating_add(part.rows));
    // Which rows of an older save are used is only known after all newer saves were read.
    let shares = if manifest.layers.is_empty() && total > CHUNK { parallelism.count() as u64 } else { 1 };
    let read_share = |share: u64| {
        let (mut restorer, mut restored) = (table.restorer(with_state), 0);
        let mut restore = |row: &Row<'_>| {
            restored += 1;
            restorer.restore(row)
        };
        if shares <= 1 {
            each_row(storage, manifest, entry, buckets.clone(), &mut restore)?;
        } else if let Some(stored) = manifest.stored(entry).next() {
            // Contiguous shares of the files, so that no two threads need the same shard.
            let at = |share: u64| (u128::from(total) * u128::from(share) / u128::from(shares)) as u64;
            let (mut from, mut to) = (at(share), at(share + 1));
            for part in &parts {
                let of_part = from.min(part.rows)..to.min(part.rows);
                (from, to) = (from.saturating_sub(part.rows), to.saturating_sub(part.rows));
                if !of_part.is_empty() {
                    Columns::open(storage, stored, part, of_part)?.each(&buckets, &mut restore)?;
                }
            }
        }
        rows.fetch_add(restored, Ordering::Relaxed);
        Ok(())
    };
    match shares {
        0 | 1 => read_share(0)?,
        _ => parallelism.work(&|share| read_share(share as u64))?,
    }
    table.set_step(entry.step);
    table.set_stamp(entry.stamp);
    if with_state && table.evicted() == 0 {
        table.follows(manifest.moment());
    }
    Ok(rows.into_inner())
}

/// The approximate number of rows according to the manifest, limited by the size of the files, because memory is reserved for
/// it.
fn rows_there(storage: &dyn Storage, manifest: &Manifest, entry: &SparseEntry) -> Result<u64> {
    let mut rows = 0u64;
    for stored in manifest.stored(entry) {
        for part in &stored.entry.parts {
            let path = format!("{}/{}.{}.npy", stored.directory, part.prefix, Column::Keys.name());
            let bytes = storage.size(&path).map_err(Error::storage("open", &path))?.unwrap_or(0);
            rows = rows.saturating_add(part.rows.min(bytes / size_of::<Key>() as u64));
        }
    }
    Ok(rows.min(entry.rows))
}

/// Calls `look` with the rows of some buckets, each from the newest save that has it, until `look` fails. If there are several
/// saves, the keys of all but the oldest are held in memory.
pub fn each_row<E: From<Error>>(
    storage: &dyn Storage,
    manifest: &Manifest,
    entry: &SparseEntry,
    buckets: Range<usize>,
    mut look: impl FnMut(&Row<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut newer = Newer::new(manifest);
    for stored in manifest.stored(entry) {
        for part in stored.entry.parts.iter().filter(|part| part.meets(&buckets)) {
            Columns::open(storage, stored, part, 0..part.rows)?.each(&buckets, |row| match newer.shows(row.key) {
                true => look(row),
                false => Ok(()),
            })?;
        }
        newer.go_back(storage, stored, &buckets)?;
    }
    Ok(())
}

/// Keys that a newer save has or has removed, when reading from the newest save to the oldest.
pub(super) struct Newer {
    keys: HashSet<Key>,
    /// Keys of the current save.
    shown: Vec<Key>,
    /// Number of saves still to read.
    older: usize,
}

impl Newer {
    pub(super) fn new(manifest: &Manifest) -> Self {
        Newer { keys: HashSet::new(), shown: Vec::new(), older: manifest.layers.len() }
    }

    /// Whether the current row is used.
    pub(super) fn shows(&mut self, key: Key) -> bool {
        let counts = self.keys.is_empty() || !self.keys.contains(&key);
        if counts && self.older > 0 {
            self.shown.push(key);
        }
        counts
    }

    /// All rows of a save were read: continue with the next older one.
    pub(super) fn go_back(&mut self, storage: &dyn Storage, stored: Stored<'_>, buckets: &Range<usize>) -> Result<()> {
        self.older = self.older.saturating_sub(1);
        self.keys.extend(self.shown.drain(..));
        for part in stored.entry.parts.iter().filter(|part| part.removed > 0 && part.meets(buckets)) {
            let mut reader = open_column(storage, stored, part, Column::Removed, 0)?;
            let mut key = [0; 8];
            for _ in 0..part.removed {
                reader.read(&mut key)?;
                self.keys.insert(Key::from_le_bytes(key));
            }
        }
        Ok(())
    }
}

/// Opens a column at some row. Its header is read with the first row.
fn open_column<'a>(
    storage: &dyn Storage,
    stored: Stored<'a>,
    part: &SparsePart,
    column: Column,
    first: u64,
) -> Result<FileReader<'a>> {
    let spec = &stored.entry.spec;
    let rows = if column == Column::Removed { part.removed } else { part.rows };
    let file = stored.file(&format!("{}.{}.npy", part.prefix, column.name()))?;
    let length = column.header(spec, rows).len() as u64;
    let from = if first == 0 { 0 } else { first.saturating_mul(column.width(spec) as u64).saturating_add(length) };
    let mut reader = FileReader::open_at(storage, stored.directory, file, from)?;
    let header = column.checked_header(spec, rows, reader.path(), file.bytes)?;
    if from > 0 {
        return Ok(reader);
    }
    let mut got = vec![0; header.len()];
    reader.read(&mut got)?;
    if got != header {
        return Err(column.strange_header(rows, reader.path().to_owned()));
    }
    Ok(reader)
}

/// The rows of one part.
struct Columns<'a> {
    entry: &'a SparseEntry,
    /// The columns, with the bytes of the current rows.
    columns: Vec<(Column, FileReader<'a>, Vec<u8>)>,
    left: u64,
}

/// Rows in memory at a time.
const CHUNK: u64 = 4096;

impl<'a> Columns<'a> {
    fn open(storage: &dyn Storage, stored: Stored<'a>, part: &SparsePart, rows: Range<u64>) -> Result<Self> {
        let entry = stored.entry;
        let columns = Column::ROWS.into_iter().filter(|column| column.width(&entry.spec) > 0);
        let open = |column| Ok((column, open_column(storage, stored, part, column, rows.start)?, Vec::new()));
        Ok(Columns { entry, columns: columns.map(open).collect::<Result<_>>()?, left: rows.end - rows.start })
    }

    /// Calls `look` with the rows of some buckets.
    fn each<E: From<Error>>(
        mut self,
        buckets: &Range<usize>,
        mut look: impl FnMut(&Row<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let spec = &self.entry.spec;
        let (mut weights, mut state) = (vec![0.0; spec.dim], Vec::new());
        while self.left > 0 {
            let rows = self.read()?;
            for at in 0..rows {
                let (mut key, mut stats) = ([0; 8], (0, None));
                for (column, _, bytes) in &self.columns {
                    let width = column.width(spec);
                    let bytes = &bytes[at * width..][..width];
                    match column {
                        Column::Keys => key.copy_from_slice(bytes),
                        Column::Weights => take_weights(bytes, spec.storage, &mut weights),
                        Column::State => take_floats(bytes, &mut state),
                        Column::Stats => stats = take_stats(bytes),
                        Column::Removed => {}
                    }
                }
                let (key, (stamp, ctr)) = (Key::from_le_bytes(key), stats);
                if buckets.contains(&bucket_of(key)) {
                    look(&Row { key, stamp, weights: &weights, state: &state, ctr })?;
                }
            }
        }
        Ok(())
    }

    /// Reads the next rows and returns how many.
    fn read(&mut self) -> Result<usize> {
        let rows = self.left.min(CHUNK) as usize;
        self.left -= rows as u64;
        for (column, reader, bytes) in &mut self.columns {
            bytes.resize(rows * column.width(&self.entry.spec), 0);
            reader.read(bytes)?;
        }
        Ok(rows)
    }
}

/// A whole dense parameter.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseValues {
    /// Its values.
    pub values: Vec<f32>,
    /// The optimizer's slots, one after the other.
    pub state: Vec<f32>,
    /// Number of updates so far.
    pub step: u64,
}

impl DenseValues {
    /// Values and slots of a block of it.
    pub fn block(&self, offset: usize, length: usize) -> Option<(&[f32], Vec<f32>)> {
        let values = self.values.get(offset..offset.checked_add(length)?)?;
        let slots = self.state.chunks_exact(self.values.len().max(1));
        Some((values, slots.flat_map(|slot| &slot[offset..offset + length]).copied().collect()))
    }
}

/// Reads all dense parameters, by name.
pub fn read_dense(storage: &dyn Storage, manifest: &Manifest) -> Result<BTreeMap<String, DenseValues>> {
    let Some(path) = &manifest.dense_file else { return Ok(BTreeMap::new()) };
    let mut reader = FileReader::open(storage, &manifest.directory, manifest.file(path)?)?;
    let bytes = reader.read_to_end()?;
    dense::take(reader.path(), &bytes, &manifest.dense)
}

/// Reads every byte and compares it with its checksum; returns how many there were. The first difference is an error.
pub fn verify(storage: &dyn Storage, manifest: &Manifest) -> Result<u64> {
    let mut bytes = 0;
    for (directory, file) in manifest.all_files() {
        let mut reader = FileReader::open(storage, directory, file)?;
        while reader.next_block()? {}
        bytes += file.bytes;
    }
    Ok(bytes)
}
