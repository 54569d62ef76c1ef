//! The manifest: lists the contents of a checkpoint. A checkpoint exists if and only if its manifest does.
//!
//! It is JSON for people and their tools. Its last member is the CRC32C of everything before that line, so a flipped bit in a
//! hyper-parameter is detected like one in a row.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;

use openfleet_core::placement::BUCKET_COUNT;
use serde::{Deserialize, Serialize};

use super::file::{FileEntry, find_flip};
use super::storage::Storage;
use crate::dense::DenseSpec;
use crate::error::{Error, Result};
use crate::ledger::Ledger;
use crate::optimizer::Optimizer;
use crate::sparse::SparseSpec;

/// File name in the checkpoint's directory.
pub const MANIFEST: &str = "manifest.json";
/// Value of its first member.
pub const FORMAT: &str = "openfleet checkpoint";
/// Incremented with every incompatible change. Version 2 has layers of older saves, version 3 tables with weights of 16 bits and
/// optimizers that version 2 does not know. The lowest version that has what a checkpoint needs is written.
pub const VERSION: u32 = 3;

/// The contents of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`], or an earlier one.
    pub version: u32,
    /// Id of the save, unique; 16 hexadecimal digits.
    pub id: String,
    /// The save whose snapshot it contains, if that was rewritten in another form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moment: Option<String>,
    /// The job that wrote it.
    pub job: String,
    /// Id of the run that wrote it: one launch of the job with all its restarts. Positions are only used in that run.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// Training mode of that job.
    pub mode: String,
    /// Number of workers.
    pub workers: u32,
    /// Training threads per worker.
    pub threads: u32,
    /// Number of servers that wrote it; any number of servers can read it.
    pub servers: u32,
    /// The maximum step of all tables, in pushes.
    pub step: u64,
    /// Directory of the files.
    pub directory: String,
    /// Sparse tables, in the program's order.
    pub sparse: Vec<SparseEntry>,
    /// Dense parameters.
    pub dense: Vec<DenseEntry>,
    /// The file with the dense parameters, if there are any.
    pub dense_file: Option<String>,
    /// The file with the program's own state, if there is any.
    #[serde(default)]
    pub states_file: Option<String>,
    /// The work that every server has applied.
    pub work: Work,
    /// How far the job was, besides the applied work; null if that is not known.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub position: serde_json::Value,
    /// User data that is returned when the checkpoint is loaded, such as an epoch or a position in the data.
    #[serde(default)]
    pub data: serde_json::Value,
    /// Every file with its checksums.
    pub files: Vec<FileEntry>,
    /// Older saves with the rows that have not changed since, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layer>,
}

/// An older save. Its rows are used unless a later save has or has removed them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// Id of the save.
    pub id: String,
    /// The maximum step of all tables at that time.
    pub step: u64,
    /// Directory of its files.
    pub directory: String,
    /// Its sparse tables.
    pub sparse: Vec<SparseEntry>,
    /// Its files with rows.
    pub files: Vec<FileEntry>,
}

/// A sparse table in one of the saves of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stored<'a> {
    pub(super) directory: &'a str,
    pub(super) entry: &'a SparseEntry,
    files: &'a [FileEntry],
}

impl<'a> Stored<'a> {
    /// A file by its path.
    pub(super) fn file(&self, path: &str) -> Result<&'a FileEntry> {
        find_file(self.files, path)
    }
}

fn find_file<'a>(files: &'a [FileEntry], path: &str) -> Result<&'a FileEntry> {
    files.iter().find(|file| file.path == path).ok_or_else(|| damaged(format!("it names no file `{path}`")))
}

fn damaged(reason: String) -> Error {
    Error::DamagedManifest { file: MANIFEST.into(), reason }
}

/// A sparse table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseEntry {
    /// Name of the table.
    pub name: String,
    /// The spec of the table.
    pub spec: SparseSpec,
    /// Number of pushes so far.
    pub step: u64,
    /// The stamp of touched rows.
    pub stamp: u32,
    /// Number of rows in the table at that time, in whichever save they are stored.
    pub rows: u64,
    /// Names of the optimizer's slots, in order.
    pub slots: Vec<String>,
    /// Its rows, by range of buckets.
    pub parts: Vec<SparsePart>,
}

/// The rows of a range of buckets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparsePart {
    /// The first and the last bucket.
    pub buckets: (u32, u32),
    /// Number of rows.
    pub rows: u64,
    /// Prefix of the files: with `.keys.npy` it is the keys, with `.weights.npy` the weights.
    pub prefix: String,
    /// Number of keys whose rows were removed since the previous save; they are in `.removed.npy`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub removed: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl SparsePart {
    /// Whether it may have keys of these buckets.
    pub fn meets(&self, buckets: &Range<usize>) -> bool {
        (self.buckets.0 as usize) < buckets.end && buckets.start <= self.buckets.1 as usize
    }
}

/// A dense parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenseEntry {
    /// Name of the parameter, and of its tensor; slots are `name/slot`.
    pub name: String,
    /// Shape, rule, hyper-parameters.
    pub spec: DenseSpec,
    /// Number of updates so far.
    pub step: u64,
    /// Names of the optimizer's slots, in order.
    pub slots: Vec<String>,
}

/// Work that has been applied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Streams outside of groups.
    pub streams: Ledger,
    /// Groups of streams that step together.
    pub groups: Vec<GroupWork>,
}

/// The progress of streams that step together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupWork {
    /// The first of its streams, and the one after the last.
    pub streams: (u32, u32),
    /// Number of steps that were applied.
    pub step: u64,
    /// Per stream: the number of those steps that it took part in, which is its position in its data.
    pub taken: BTreeMap<u32, u64>,
    /// Per stream: the pass it left last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left: BTreeMap<u32, u64>,
}

impl Work {
    /// Adds what another server has applied. Both servers have to apply the result before a consistent snapshot.
    pub fn merge(&mut self, other: &Work) {
        self.streams.merge(&other.streams);
        for theirs in &other.groups {
            match self.groups.iter_mut().find(|ours| ours.streams == theirs.streams) {
                Some(ours) if theirs.step > ours.step => ours.clone_from(theirs),
                Some(_) => {}
                None => self.groups.push(theirs.clone()),
            }
        }
    }

    /// The first step of each stream that has not been applied.
    pub fn positions(&self) -> BTreeMap<u32, u64> {
        let of_groups = self.groups.iter().flat_map(|group| &group.taken).map(|(&stream, &step)| (stream, step));
        self.streams.positions().chain(of_groups).collect()
    }
}

impl Manifest {
    /// The save whose snapshot it contains.
    pub fn moment(&self) -> &str {
        self.moment.as_deref().unwrap_or(&self.id)
    }

    /// Every file of every save in the checkpoint, with its directory.
    pub fn all_files(&self) -> impl Iterator<Item = (&str, &FileEntry)> {
        let of_layers = self.layers.iter().flat_map(|layer| layer.files.iter().map(|file| (&*layer.directory, file)));
        of_layers.chain(self.files.iter().map(|file| (&*self.directory, file)))
    }

    /// Bytes of the files with rows of a table, in all saves of the checkpoint.
    pub fn bytes_of(&self, entry: &SparseEntry) -> u64 {
        let of_part = |stored: Stored<'_>, part: &SparsePart| {
            let is_of = |path: &str| path.strip_prefix(&part.prefix).is_some_and(|rest| rest.starts_with('.'));
            stored.files.iter().filter(|file| is_of(&file.path)).map(|file| file.bytes).sum::<u64>()
        };
        self.stored(entry).flat_map(|stored| stored.entry.parts.iter().map(move |part| of_part(stored, part))).sum()
    }

    /// A file of the newest save by its path.
    pub(super) fn file(&self, path: &str) -> Result<&FileEntry> {
        find_file(&self.files, path)
    }

    /// A table in all saves that have rows of it, newest first.
    pub(super) fn stored<'a>(&'a self, entry: &'a SparseEntry) -> impl Iterator<Item = Stored<'a>> {
        let own = Stored { directory: &self.directory, entry, files: &self.files };
        let older = self.layers.iter().rev().filter_map(|layer| {
            let entry = layer.sparse.iter().find(|older| older.name == entry.name)?;
            Some(Stored { directory: &layer.directory, entry, files: &layer.files })
        });
        std::iter::once(own).chain(older)
    }

    /// Turns a checkpoint into layers of a newer save.
    pub(super) fn into_layers(self) -> Vec<Layer> {
        let Manifest { id, step, directory, sparse, files, mut layers, dense_file, states_file, .. } = self;
        // Dense values and states are complete in every save.
        let is_beside = |path: &String| [&dense_file, &states_file].into_iter().flatten().any(|beside| beside == path);
        let files = files.into_iter().filter(|file| !is_beside(&file.path)).collect();
        layers.push(Layer { id, step, directory, sparse, files });
        layers
    }

    /// Encodes the manifest as the bytes of a file.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|error| damaged(error.to_string()))?;
        bytes.truncate(bytes.len() - "\n}".len());
        bytes.extend_from_slice(b",\n");
        bytes.extend_from_slice(tail(crc_fast::crc32_iscsi(&bytes)).as_bytes());
        Ok(bytes)
    }

    /// Decodes the bytes of a file. Fails if it is damaged or of another version.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let content = bytes.len().checked_sub(tail(0).len()).map(|end| &bytes[..end]).unwrap_or_default();
        // Another version may have another ending: report the version, not damage.
        let version = serde_json::from_slice::<VersionOnly>(bytes).ok().filter(|known| known.format == FORMAT);
        if let Some(VersionOnly { version, .. }) = version
            && !(1..=VERSION).contains(&version)
        {
            return Err(Error::FormatVersion { file: MANIFEST.into(), expected: VERSION, got: version });
        }
        let got = crc_fast::crc32_iscsi(content);
        if bytes[content.len()..] != *tail(got).as_bytes() {
            let said = std::str::from_utf8(&bytes[content.len()..]).ok();
            let said = said.and_then(|text| text.strip_prefix(TAIL)?.strip_suffix(END));
            let said = said.and_then(|digits| u32::from_str_radix(digits, 16).ok());
            let flip = said.and_then(|said| find_flip(said, got, content.len()));
            return Err(Error::DamagedBlock { file: MANIFEST.into(), offset: 0, length: bytes.len() as u64, flip });
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if manifest.format != FORMAT {
            return Err(damaged(format!("its format is `{}`", manifest.format)));
        }
        let is_plain = |path: &str| !path.split('/').any(|step| step.is_empty() || step == "." || step == "..");
        let paths = manifest.all_files().flat_map(|(directory, file)| [directory, &file.path]);
        if let Some(path) = paths.chain([&*manifest.directory]).find(|path| !is_plain(path)) {
            return Err(damaged(format!("`{path}` is not a path within the checkpoint")));
        }
        let tables = manifest.layers.iter().flat_map(|layer| &layer.sparse).chain(&manifest.sparse);
        let mut parts = tables.flat_map(|table| &table.parts);
        if let Some(part) = parts.find(|part| part.buckets.1 as usize >= BUCKET_COUNT) {
            return Err(damaged(format!("there is no bucket {}", part.buckets.1)));
        }
        Ok(manifest)
    }
}

/// The lowest version that describes these tables, so that earlier releases read whatever they can.
pub(super) fn version_of(sparse: &[SparseEntry], dense: &[DenseEntry], layers: &[Layer]) -> u32 {
    let mut tables = layers.iter().flat_map(|layer| &layer.sparse).chain(sparse);
    let mut rules =
        tables.clone().map(|table| table.spec.optimizer).chain(dense.iter().map(|entry| entry.spec.optimizer));
    if rules.any(|rule| is_since_version_3(&rule)) || tables.any(|table| !table.spec.storage.is_float32()) {
        3
    } else if !layers.is_empty() {
        2
    } else {
        1
    }
}

/// Whether version 2 has no words for this rule.
fn is_since_version_3(rule: &Optimizer) -> bool {
    match rule {
        Optimizer::RowwiseAdagrad(_)
        | Optimizer::DecayedAdagrad(_)
        | Optimizer::Adadelta(_)
        | Optimizer::AdamW(_)
        | Optimizer::Adamax(_)
        | Optimizer::Lamb(_) => true,
        Optimizer::Adam(adam) => adam.rows_ahead || adam.unscaled_epsilon || rule.moves_every_row(),
        Optimizer::Sgd(_)
        | Optimizer::Momentum(_)
        | Optimizer::Adagrad(_)
        | Optimizer::RmsProp(_)
        | Optimizer::Ftrl(_) => false,
    }
}

#[derive(Deserialize)]
struct VersionOnly {
    format: String,
    version: u32,
}

const TAIL: &str = "  \"crc32c\": \"";
const END: &str = "\"\n}\n";

fn tail(checksum: u32) -> String {
    format!("{TAIL}{checksum:08x}{END}")
}

/// Reads the manifest of a checkpoint. Fails if there is none.
pub fn read_manifest(storage: &dyn Storage) -> Result<Manifest> {
    find_manifest(storage)?.ok_or_else(|| Error::NotACheckpoint { name: storage.name() })
}

/// Reads the manifest of a checkpoint, if there is one.
pub fn find_manifest(storage: &dyn Storage) -> Result<Option<Manifest>> {
    if storage.size(MANIFEST).map_err(Error::storage("open", MANIFEST))?.is_none() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let mut file = storage.open(MANIFEST).map_err(Error::storage("open", MANIFEST))?;
    file.read_to_end(&mut bytes).map_err(Error::storage("read", MANIFEST))?;
    Manifest::decode(&bytes).map(Some)
}

#[cfg(test)]
mod tests {
    use openfleet_core::WorkId;

    use super::*;
    use crate::checkpoint::Flip;

    fn manifest() -> Manifest {
        let mut streams = Ledger::new();
        let _ = streams.apply_once(WorkId { stream: 3, first_step: 0, last_step: 9 }, || ());
        let group = GroupWork { streams: (0, 2), step: 5, taken: [(0, 5), (1, 4)].into(), left: [(1, 2)].into() };
        Manifest {
            format: FORMAT.into(),
            version: 1,
            id: "0123456789abcdef".into(),
            moment: None,
            job: "a job".into(),
            run: "a run".into(),
            mode: "sync".into(),
            workers: 2,
            threads: 1,
            servers: 3,
            step: 5,
            directory: "data-0123456789abcdef".into(),
            sparse: vec![],
            dense: vec![],
            dense_file: None,
            states_file: None,
            work: Work { streams, groups: vec![group] },
            position: serde_json::json!({"collectives": {}}),
            data: serde_json::json!({"epoch": 2}),
            files: vec![],
            layers: vec![],
        }
    }

    #[test]
    fn a_manifest_round_trips_and_is_plain_json() {
        let manifest = manifest();
        let bytes = manifest.encode().unwrap();
        assert_eq!(Manifest::decode(&bytes).unwrap(), manifest);
        assert!(serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()["crc32c"].is_string());
        assert_eq!(manifest.work.positions(), [(0, 5), (1, 4), (3, 10)].into());
    }

    #[test]
    fn every_flipped_bit_of_a_manifest_is_noticed_and_named() {
        let bytes = manifest().encode().unwrap();
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1 << (at % 8);
            match Manifest::decode(&wrong) {
                Err(Error::DamagedBlock { flip, .. }) if at < bytes.len() - tail(0).len() => {
                    assert_eq!(flip, Some(Flip { offset: at as u64, bit: (at % 8) as u32 }));
                }
                Err(Error::DamagedBlock { .. } | Error::FormatVersion { .. }) => {}
                other => panic!("byte {at}: {other:?}"),
            }
        }
        for length in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_later_version_is_named_as_one() {
        let later = Manifest { version: 4, ..manifest() }.encode().unwrap();
        assert_eq!(
            Manifest::decode(&later).unwrap_err(),
            Error::FormatVersion { file: MANIFEST.into(), expected: 3, got: 4 }
        );
    }

    #[test]
    fn paths_that_leave_the_checkpoint_are_refused() {
        for path in ["../passwd", "/etc/passwd", "a//b", "."] {
            let file = || vec![FileEntry { path: path.into(), bytes: 0, crc32c: String::new() }];
            let older = Manifest { files: file(), ..manifest() }.into_layers();
            for manifest in [
                Manifest { files: file(), ..manifest() },
                Manifest { directory: path.into(), ..manifest() },
                Manifest { layers: older, ..manifest() },
            ] {
                let bytes = manifest.encode().unwrap();
                assert!(matches!(Manifest::decode(&bytes), Err(Error::DamagedManifest { .. })), "{path}");
            }
        }
    }

    #[test]
    fn merged_work_is_what_either_has_applied() {
        let mut ours = manifest().work;
        let mut theirs = ours.clone();
        theirs.groups[0].step = 6;
        let _ = theirs.streams.apply_once(WorkId { stream: 3, first_step: 12, last_step: 13 }, || ());
        let _ = ours.streams.apply_once(WorkId { stream: 3, first_step: 10, last_step: 11 }, || ());
        ours.merge(&theirs);
        assert_eq!((ours.groups[0].step, ours.streams.position(3)), (6, 14));
    }
}
