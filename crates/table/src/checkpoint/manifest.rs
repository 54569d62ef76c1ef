//! The manifest: what a checkpoint consists of, and the only file whose presence makes it one.
//!
//! It is JSON for people and their tools. Its last member is the CRC32C of everything before that line, so that a bit
//! that was flipped in a hyper-parameter is noticed like one that was flipped in a row.

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
use crate::sparse::SparseSpec;

/// Its name in the checkpoint's directory.
pub const MANIFEST: &str = "manifest.json";
/// What its first member says.
pub const FORMAT: &str = "openfleet checkpoint";
/// Changes whenever an older reader could misunderstand.
pub const VERSION: u32 = 1;

/// What a checkpoint consists of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Another one for every save; 16 hexadecimal digits.
    pub id: String,
    /// The job that wrote it.
    pub job: String,
    /// How that job trained.
    pub mode: String,
    /// Its workers.
    pub workers: u32,
    /// Training threads of each.
    pub threads: u32,
    /// The servers that wrote it; those that read it may be more or fewer.
    pub servers: u32,
    /// The furthest that any table had come, in pushes.
    pub step: u64,
    /// Where the files are.
    pub directory: String,
    /// Sparse tables, in the program's order.
    pub sparse: Vec<SparseEntry>,
    /// Dense parameters.
    pub dense: Vec<DenseEntry>,
    /// The file with the dense parameters, if there are any.
    pub dense_file: Option<String>,
    /// The file with what the program keeps beside them, if there is anything.
    #[serde(default)]
    pub states_file: Option<String>,
    /// What has been applied, on every server alike.
    pub work: Work,
    /// Whatever the caller wants back: an epoch, a position in the data.
    #[serde(default)]
    pub data: serde_json::Value,
    /// Every file with its checksums.
    pub files: Vec<FileEntry>,
}

/// A sparse table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SparseEntry {
    /// What people call it.
    pub name: String,
    /// What it was made from: schema, rule, hyper-parameters.
    pub spec: SparseSpec,
    /// Pushes so far.
    pub step: u64,
    /// The stamp that touched rows got.
    pub stamp: u32,
    /// Rows over all parts.
    pub rows: u64,
    /// What the optimizer's slots hold, in order.
    pub slots: Vec<String>,
    /// Its rows, by range of buckets.
    pub parts: Vec<SparsePart>,
}

/// The rows of a range of buckets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparsePart {
    /// The first and the last bucket.
    pub buckets: (u32, u32),
    /// How many rows.
    pub rows: u64,
    /// Of the files: with `.keys.npy` it is the keys, with `.weights.npy` the weights.
    pub prefix: String,
}

impl SparsePart {
    /// Whether there may be keys of these buckets in it.
    pub fn meets(&self, buckets: &Range<usize>) -> bool {
        (self.buckets.0 as usize) < buckets.end && buckets.start <= self.buckets.1 as usize
    }
}

/// A dense parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenseEntry {
    /// Its name, and that of its tensor; slots are `name/slot`.
    pub name: String,
    /// Shape, rule, hyper-parameters.
    pub spec: DenseSpec,
    /// Updates so far.
    pub step: u64,
    /// What the optimizer's slots hold, in order.
    pub slots: Vec<String>,
}

/// Work that has been applied.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// By stream, where nobody waits.
    pub streams: Ledger,
    /// By groups that step together.
    pub groups: Vec<GroupWork>,
}

/// How far streams have come that step together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupWork {
    /// The first of its streams and the one after the last.
    pub streams: (u32, u32),
    /// Steps that were applied.
    pub step: u64,
    /// Of those, how many each stream took part in: its position in its data.
    pub taken: BTreeMap<u32, u64>,
}

impl Work {
    /// What either of two servers has applied: what both have to reach before they are at the same moment.
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
    /// A file by its path.
    pub(super) fn file(&self, path: &str) -> Result<&FileEntry> {
        let unknown = || self.damaged(format!("it names no file `{path}`"));
        self.files.iter().find(|file| file.path == path).ok_or_else(unknown)
    }

    fn damaged(&self, reason: String) -> Error {
        Error::DamagedManifest { file: MANIFEST.into(), reason }
    }

    /// As the bytes of a file.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|error| self.damaged(error.to_string()))?;
        bytes.truncate(bytes.len() - "\n}".len());
        bytes.extend_from_slice(b",\n");
        bytes.extend_from_slice(tail(crc32c::crc32c(&bytes)).as_bytes());
        Ok(bytes)
    }

    /// From the bytes of a file.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |reason: String| Error::DamagedManifest { file: MANIFEST.into(), reason };
        let content = bytes.len().checked_sub(tail(0).len()).map(|end| &bytes[..end]).unwrap_or_default();
        // Another version may have another end: say so rather than that it is damaged.
        let version = serde_json::from_slice::<VersionOnly>(bytes).ok().filter(|known| known.format == FORMAT);
        if let Some(VersionOnly { version, .. }) = version
            && version != VERSION
        {
            return Err(Error::FormatVersion { file: MANIFEST.into(), expected: VERSION, got: version });
        }
        let got = crc32c::crc32c(content);
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
        let outside = manifest.files.iter().map(|file| &file.path).chain([&manifest.directory]);
        if let Some(path) = outside.into_iter().find(|path| !is_plain(path)) {
            return Err(damaged(format!("`{path}` is not a path within the checkpoint")));
        }
        let parts = manifest.sparse.iter().flat_map(|table| &table.parts);
        if let Some(part) = parts.into_iter().find(|part| part.buckets.1 as usize >= BUCKET_COUNT) {
            return Err(damaged(format!("there is no bucket {}", part.buckets.1)));
        }
        Ok(manifest)
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

/// The manifest of a checkpoint.
pub fn read_manifest(storage: &dyn Storage) -> Result<Manifest> {
    if storage.size(MANIFEST).map_err(Error::storage("open", MANIFEST))?.is_none() {
        return Err(Error::NotACheckpoint { name: storage.name() });
    }
    let mut bytes = Vec::new();
    let mut file = storage.open(MANIFEST).map_err(Error::storage("open", MANIFEST))?;
    file.read_to_end(&mut bytes).map_err(Error::storage("read", MANIFEST))?;
    Manifest::decode(&bytes)
}

#[cfg(test)]
mod tests {
    use openfleet_core::WorkId;

    use super::*;
    use crate::checkpoint::Flip;

    fn manifest() -> Manifest {
        let mut streams = Ledger::new();
        let _ = streams.apply_once(WorkId { stream: 3, first_step: 0, last_step: 9 }, || ());
        let group = GroupWork { streams: (0, 2), step: 5, taken: [(0, 5), (1, 4)].into() };
        Manifest {
            format: FORMAT.into(),
            version: VERSION,
            id: "0123456789abcdef".into(),
            job: "a job".into(),
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
            data: serde_json::json!({"epoch": 2}),
            files: vec![],
        }
    }

    #[test]
    fn a_manifest_comes_back_as_it_was_and_is_plain_json() {
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
        let later = Manifest { version: 2, ..manifest() }.encode().unwrap();
        assert_eq!(
            Manifest::decode(&later).unwrap_err(),
            Error::FormatVersion { file: MANIFEST.into(), expected: 1, got: 2 }
        );
    }

    #[test]
    fn paths_that_leave_the_checkpoint_are_refused() {
        for path in ["../passwd", "/etc/passwd", "a//b", "."] {
            let file = FileEntry { path: path.into(), bytes: 0, crc32c: String::new() };
            let bytes = Manifest { files: vec![file], ..manifest() }.encode().unwrap();
            assert!(matches!(Manifest::decode(&bytes), Err(Error::DamagedManifest { .. })), "{path}");
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
