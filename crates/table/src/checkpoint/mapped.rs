//! A saved sparse table that is read in place: keys and weights stay in their files, and an index finds the row of a key.
//!
//! Prediction does not change rows, so it needs neither shards nor locks, nor a copy of a table that may be larger than memory.
//! Opening reads everything once: every byte is compared with its checksum, and every key is added to the index (12 bytes per
//! row, the only memory used). After that, any number of threads read rows in place.

use openfleet_core::Key;
use openfleet_core::key::mix;
use openfleet_core::placement::{BUCKET_COUNT, bucket_of};

use super::columns::{Column, take_weights};
use super::file;
use super::manifest::{Manifest, SparseEntry, SparsePart, Stored};
use super::read::Newer;
use super::storage::{Bytes, Storage};
use crate::accessor::RowStorage;
use crate::error::{Error, Result, same_length};
use crate::sparse::index::Index;
use crate::sparse::prefetch::prefetch;
use crate::sparse::{SparseSpec, SparseTable};

/// The rows of a sparse table as they were saved.
pub struct MappedTable {
    dim: usize,
    parts: Vec<MappedPart>,
    /// Has no rows; provides the initial values of keys without a row.
    absent: SparseTable,
}

/// The rows of a range of buckets.
struct MappedPart {
    /// The first and the last bucket.
    buckets: (usize, usize),
    keys: MappedColumn,
    weights: MappedColumn,
    /// How the weights are stored.
    storage: RowStorage,
    /// Number of rows that no newer save has or has removed.
    rows: usize,
    /// Index of those rows.
    index: Index,
}

/// One file, without its header.
struct MappedColumn {
    bytes: Bytes,
    header: usize,
    width: usize,
}

/// Number of keys whose index entries are prefetched together.
const BATCH: usize = 16;

impl MappedTable {
    /// Opens a table of a checkpoint. `spec` is the reading program's spec, which determines the values of keys without a row.
    /// The caller has compared it with the saved one ([`Loaded`](super::Loaded)).
    pub fn open(storage: &dyn Storage, manifest: &Manifest, entry: &SparseEntry, spec: SparseSpec) -> Result<Self> {
        let (mut parts, mut newer) = (Vec::new(), Newer::new(manifest));
        for stored in manifest.stored(entry) {
            for part in stored.entry.parts.iter().filter(|part| part.rows > 0) {
                parts.push(MappedPart::open(storage, stored, part, &mut newer)?);
            }
            newer.go_back(storage, stored, &(0..BUCKET_COUNT))?;
        }
        let (dim, absent) = (spec.dim, SparseTable::new(SparseSpec { shards: 1, ..spec })?);
        if entry.spec.dim != dim {
            let weights = |dim| format!("rows of {dim} weights").into();
            let (expected, got) = (weights(dim), weights(entry.spec.dim));
            return Err(Error::SavedShape { name: entry.name.clone(), expected, got });
        }
        Ok(MappedTable { dim, parts, absent })
    }

    /// Copies the weights of `keys[i]` to `rows[i * dim..]`; a key without a row gives the same as [`pull`](SparseTable::pull)
    /// with [`Missing::Initial`](crate::Missing::Initial).
    pub fn pull(&self, keys: &[Key], rows: &mut [f32]) -> Result<()> {
        same_length("rows", keys.len().saturating_mul(self.dim), rows.len())?;
        for (keys, rows) in keys.chunks(BATCH).zip(rows.chunks_mut(BATCH * self.dim)) {
            // The cache misses of a batch overlap: first in the index, then in the files.
            for &key in keys {
                self.parts_of(key).for_each(|part| part.index.prefetch(tag(key)));
            }
            for &key in keys {
                self.parts_of(key).for_each(|part| part.look_ahead(tag(key)));
            }
            for (&key, row) in keys.iter().zip(rows.chunks_exact_mut(self.dim)) {
                if !self.parts_of(key).any(|part| part.copy_weights(key, row)) {
                    self.absent.show_absent(key, row);
                }
            }
        }
        Ok(())
    }

    /// Calls `look` with every key and its weights, in the order of the files.
    pub fn for_each(&self, mut look: impl FnMut(Key, &[f32])) {
        let mut weights = vec![0.0; self.dim];
        for part in &self.parts {
            for row in 0..part.keys.rows() {
                let key = part.key(row);
                if part.rows < part.keys.rows() && part.row_of(key).is_none() {
                    continue;
                }
                take_weights(part.weights.row(row), part.storage, &mut weights);
                look(key, &weights);
            }
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Weights per row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The spec, which determines the values of keys without a row.
    pub fn spec(&self) -> &SparseSpec {
        self.absent.spec()
    }

    /// Parts that may have a key: one per save. At most one of them has it.
    fn parts_of(&self, key: Key) -> impl Iterator<Item = &MappedPart> {
        // As many as servers that wrote it: one or a few.
        let bucket = bucket_of(key);
        self.parts.iter().filter(move |part| part.buckets.0 <= bucket && bucket <= part.buckets.1)
    }
}

impl std::fmt::Debug for MappedTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedTable").field("rows", &self.len()).field("spec", self.spec()).finish_non_exhaustive()
    }
}

impl MappedPart {
    fn open(storage: &dyn Storage, stored: Stored<'_>, part: &SparsePart, newer: &mut Newer) -> Result<Self> {
        let column = |column| MappedColumn::open(storage, stored, part, column);
        let (keys, weights) = (column(Column::Keys)?, column(Column::Weights)?);
        let file = format!("{}/{}.keys.npy", stored.directory, part.prefix);
        let damaged = |reason: String| Error::DamagedManifest { file: file.clone(), reason };
        // The index numbers rows from 1 in 32 bits.
        let rows = u32::try_from(part.rows).ok().filter(|rows| *rows < u32::MAX);
        let rows = rows.ok_or_else(|| damaged(format!("{} rows are more than a part can have", part.rows)))?;
        let mut index = Index::with_capacity(rows as usize);
        let mut counting = 0;
        for row in 0..rows {
            let key = key_of(keys.row(row as usize));
            if !newer.shows(key) {
                continue;
            }
            counting += 1;
            if index.find(tag(key), |other| key_of(keys.row(other as usize)) == key).is_some() {
                return Err(damaged(format!("key {key} is in it twice")));
            }
            index.insert(tag(key), row);
        }
        let (first, last) = part.buckets;
        let (buckets, storage) = ((first as usize, last as usize), stored.entry.spec.storage);
        Ok(MappedPart { buckets, keys, weights, storage, rows: counting, index })
    }

    /// Prefetches the row that a key with this tag probably has.
    fn look_ahead(&self, tag: u32) {
        if let Some(row) = self.index.find(tag, |_| true) {
            self.keys.prefetch(row as usize);
            self.weights.prefetch(row as usize);
        }
    }

    fn row_of(&self, key: Key) -> Option<u32> {
        self.index.find(tag(key), |row| self.key(row as usize) == key)
    }

    /// Copies the weights of a key, if it has a row here.
    fn copy_weights(&self, key: Key, out: &mut [f32]) -> bool {
        let Some(row) = self.row_of(key) else { return false };
        take_weights(self.weights.row(row as usize), self.storage, out);
        true
    }

    fn key(&self, row: usize) -> Key {
        key_of(self.keys.row(row))
    }
}

impl MappedColumn {
    fn open(storage: &dyn Storage, stored: Stored<'_>, part: &SparsePart, column: Column) -> Result<Self> {
        let spec = &stored.entry.spec;
        let file = stored.file(&format!("{}.{}.npy", part.prefix, column.name()))?;
        let (path, bytes) = file::map(storage, stored.directory, file)?;
        let header = column.checked_header(spec, part.rows, &path, file.bytes)?;
        if !bytes.as_ref().as_ref().starts_with(&header) {
            return Err(column.strange_header(part.rows, path));
        }
        Ok(MappedColumn { bytes, header: header.len(), width: column.width(spec) })
    }

    fn rows(&self) -> usize {
        (self.bytes.as_ref().as_ref().len() - self.header) / self.width
    }

    fn prefetch(&self, row: usize) {
        prefetch(self.bytes.as_ref().as_ref(), self.header + row * self.width, self.width);
    }

    fn row(&self, row: usize) -> &[u8] {
        &self.bytes.as_ref().as_ref()[self.header + row * self.width..][..self.width]
    }
}

/// The index's part of a key's hash: not the bits that determine the bucket, which the keys of a part share.
fn tag(key: Key) -> u32 {
    mix(key) as u32
}

fn key_of(bytes: &[u8]) -> Key {
    let mut key = [0; 8];
    key.copy_from_slice(bytes);
    Key::from_le_bytes(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::checkpoint::{self, Commit, Memory, SparseCut, TableCuts, Work};
    use crate::{Accessor, Admission, CtrOptions, Initializer, Missing, Optimizer, Schedule, Scratch, Sgd, ShowClick};
    use openfleet_core::placement::Buckets;

    fn spec(admission: Admission) -> SparseSpec {
        SparseSpec {
            dim: 3,
            optimizer: Optimizer::Sgd(Sgd::default()),
            schedule: Schedule::Constant(0.1),
            regularizer: None,
            initializer: Initializer::Normal { mean: 0.0, std: 1.0 },
            seed: 9,
            shards: 4,
            accessor: Default::default(),
            admission,
            capacity: None,
            non_finite: Default::default(),
            salted: false,
            storage: Default::default(),
        }
    }

    fn saved(table: &Arc<SparseTable>) -> (Memory, Manifest) {
        let storage = Memory::new();
        let cuts = TableCuts {
            server: 0,
            buckets: 0..BUCKET_COUNT,
            sparse: vec![SparseCut { name: "t".into(), cut: table.cut().unwrap(), without_state: true }],
            dense: Vec::new(),
            work: Work::default(),
            position: serde_json::Value::Null,
        };
        let save = Commit { id: "0123456789abcdef".into(), ..Commit::default() };
        let manifest = checkpoint::save_alone(&storage, save, cuts, true).unwrap();
        (storage, manifest)
    }

    fn filled(admission: Admission) -> Arc<SparseTable> {
        let table = Arc::new(SparseTable::new(spec(admission)).unwrap());
        for key in (0..5000).map(|at: u64| at.wrapping_mul(0x9E37_79B9_7F4A_7C15)) {
            let weight = key as f32;
            table.assign(key, &[weight, -weight, 0.5], None).unwrap();
        }
        table
    }

    #[test]
    fn rows_equal_those_of_the_table_also_for_absent_keys() {
        for admission in [Admission::All, Admission::Count(3), Admission::Probability(0.5)] {
            let table = filled(admission);
            let (storage, manifest) = saved(&table);
            let mapped = MappedTable::open(&storage, &manifest, &manifest.sparse[0], spec(admission)).unwrap();
            assert_eq!((mapped.len(), mapped.dim()), (5000, 3));
            assert_eq!(pulled(&mapped), all(&table), "{admission:?}");
            let mut rows = 0;
            mapped.for_each(|key, weights| {
                rows += 1;
                assert_eq!(table.read(key, |saved, _| saved.to_vec()).as_deref(), Some(weights));
            });
            assert_eq!(rows, 5000);
        }
    }

    #[test]
    fn however_many_servers_wrote_it_a_key_is_found() {
        let table = filled(Admission::All);
        let (storage, manifest) = saved(&table);
        let parts = Memory::new();
        let manifest =
            checkpoint::reshard(&storage, &manifest, &parts, "1123456789abcdef", Buckets::new(3).unwrap(), true)
                .unwrap();
        let mapped = MappedTable::open(&parts, &manifest, &manifest.sparse[0], spec(Admission::All)).unwrap();
        assert_eq!((manifest.sparse[0].parts.len(), mapped.len()), (3, 5000));
        assert_eq!(pulled(&mapped), all(&table));
    }

    #[test]
    fn ctr_rows_with_and_without_a_long_part_are_those_of_the_table() {
        let options = CtrOptions { embedx_threshold: 5.0, zero_init: false, ..CtrOptions::default() };
        let spec = SparseSpec { accessor: Accessor::Ctr(options), ..spec(Admission::All) };
        let table = Arc::new(SparseTable::new(spec.clone()).unwrap());
        let mut scratch = Scratch::new();
        let keys: Vec<Key> = (0..100).collect();
        // The first half has enough shows.
        let shows: Vec<f32> = keys.iter().map(|&key| if key < 50 { 100.0 } else { 1.0 }).collect();
        for step in 0..3 {
            let gradients: Vec<f32> = (0..300).map(|i| ((i * 7 + step) % 11) as f32 * 0.1 - 0.5).collect();
            let counts = ShowClick { show: &shows, click: &[0.0; 100] };
            table.push_with(&keys, &gradients, Some(counts), &mut scratch).unwrap();
        }
        let (storage, manifest) = saved(&table);
        let mapped = MappedTable::open(&storage, &manifest, &manifest.sparse[0], spec).unwrap();
        assert_eq!(pulled(&mapped), all(&table));
        let mut row = [9.0; 3];
        mapped.pull(&[99], &mut row).unwrap();
        assert!(row[0] != 0.0 && row[1..] == [0.0; 2], "{row:?}");
    }

    /// Rows of keys, some of which exist, as bits.
    fn pulled(mapped: &MappedTable) -> Vec<u32> {
        let mut rows = vec![1.0; KEYS * 3];
        mapped.pull(&keys(), &mut rows).unwrap();
        rows.iter().map(|float| float.to_bits()).collect()
    }

    fn all(table: &SparseTable) -> Vec<u32> {
        let mut rows = vec![0.0; KEYS * 3];
        table.pull(&keys(), Missing::Initial, &mut rows, &mut Scratch::new()).unwrap();
        rows.iter().map(|float| float.to_bits()).collect()
    }

    const KEYS: usize = 12_000;

    /// The keys of `filled`, more of the same kind, and small ones.
    fn keys() -> Vec<Key> {
        (0..6000).flat_map(|at: u64| [at, at.wrapping_mul(0x9E37_79B9_7F4A_7C15)]).collect()
    }

    #[test]
    fn a_flipped_bit_is_found_when_the_table_is_opened() {
        let (storage, manifest) = saved(&filled(Admission::All));
        let weights = storage.files().into_iter().find(|(path, _)| path.ends_with(".weights.npy"));
        let (path, mut bytes) = weights.unwrap();
        bytes[7777] ^= 4;
        storage.put(&path, bytes);
        let error = MappedTable::open(&storage, &manifest, &manifest.sparse[0], spec(Admission::All)).unwrap_err();
        let Error::DamagedBlock { file, flip: Some(flip), .. } = error else { panic!("{error}") };
        assert_eq!((file, flip.offset, flip.bit), (path, 7777, 2));
    }

    #[test]
    fn a_table_without_rows_gives_first_values() {
        let table = Arc::new(SparseTable::new(spec(Admission::All)).unwrap());
        let (storage, manifest) = saved(&table);
        let mapped = MappedTable::open(&storage, &manifest, &manifest.sparse[0], spec(Admission::All)).unwrap();
        let (mut expected, mut got) = ([0.0; 3], [1.0; 3]);
        table.pull(&[7], Missing::Initial, &mut expected, &mut Scratch::new()).unwrap();
        mapped.pull(&[7], &mut got).unwrap();
        assert!(mapped.is_empty() && got == expected);
        assert!(mapped.pull(&[7, 8], &mut got).is_err(), "capacity for one row");
    }
}
