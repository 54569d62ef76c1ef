//! Commits the parts of all servers as a checkpoint: the order of these steps makes it atomic.
//!
//! ```text
//! begin     .saving-ID is created
//!           every server writes its part into it                    (write_part)
//! commit    every file exists; dense blocks are merged into whole parameters
//!           .saving-ID is renamed to data-ID                        not visible to readers yet
//!           manifest.json.saving is written and synced
//!           manifest.json.saving is renamed to manifest.json        the checkpoint is committed
//!           what no manifest names is removed
//! ```
//!
//! A storage without directories may write to `data-ID` from the start, with `.saving-ID` as just another name for it: nothing
//! there is part of a checkpoint before the manifest names it.

use serde::{Deserialize, Serialize};

use super::dense;
use super::file::FileWriter;
use super::manifest::{FORMAT, Layer, MANIFEST, Manifest, SparseEntry, find_manifest, read_manifest, version_of};
use super::states;
use super::storage::Storage;
use super::write::{ServerPart, TableCuts, temporary, write_part};
use crate::error::{Error, Result};

/// What the manifest of a save is made from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// 16 hexadecimal digits, unique per save.
    pub id: String,
    /// Name of the job.
    pub job: String,
    /// Training mode.
    pub mode: String,
    /// Number of workers.
    pub workers: u32,
    /// Training threads per worker.
    pub threads: u32,
    /// User data that is returned when the checkpoint is loaded.
    pub data: serde_json::Value,
    /// The program's own state, encoded by [`encode_states`](super::encode_states). Bytes, not JSON.
    #[serde(skip)]
    pub states: Vec<u8>,
    /// What each server has written, in order.
    pub parts: Vec<ServerPart>,
    /// What it replaces.
    #[serde(default)]
    pub replaces: Replaces,
    /// The save whose snapshot it contains, if that is another one.
    #[serde(default)]
    pub moment: Option<String>,
    /// Id of the run.
    #[serde(default)]
    pub run: String,
}

/// What a save replaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Replaces {
    /// Whatever is there.
    #[default]
    Anything,
    /// The save with this id, completely.
    Whole(String),
    /// The save with this id, whose rows are still used if there are no newer ones.
    Changes(String),
}

/// Prepares a storage for the save `id`. Fails if there is a checkpoint and `replace` is false.
pub fn begin(storage: &dyn Storage, id: &str, replace: bool) -> Result<()> {
    if !is_id(id) {
        return Err(Error::DamagedManifest {
            file: temporary(id),
            reason: "its id is not 16 hexadecimal digits".into(),
        });
    }
    if !replace && storage.size(MANIFEST).map_err(Error::storage("open", MANIFEST))?.is_some() {
        return Err(Error::CheckpointExists { name: storage.name() });
    }
    let directory = temporary(id);
    storage.make_directory(&directory).map_err(Error::storage("create", &directory))
}

/// Removes the files of a save that failed.
///
/// The save may have succeeded after all, if the caller did not get the reply. So nothing is removed that the manifest names,
/// and nothing at all if the manifest cannot be read. Must not be called while the same save is being committed.
pub fn abandon(storage: &dyn Storage, id: &str) {
    let Ok(standing) = find_manifest(storage) else { return };
    if is_id(id) && !standing.is_some_and(|standing| is_named(&standing, &directory(id))) {
        // Not worth an error: the next successful save removes it.
        let _ = storage.remove(&temporary(id));
    }
}

/// Whether saves create entries of this name in a checkpoint's directory, complete or not.
pub fn is_of_a_save(name: &str) -> bool {
    let id = name.strip_prefix("data-").or_else(|| name.strip_prefix(".saving-"));
    id.is_some_and(is_id) || name == new_manifest()
}

/// Saves the tables of a single process; `save` has no parts yet.
pub fn save_alone(storage: &dyn Storage, mut save: Commit, cuts: TableCuts, replace: bool) -> Result<Manifest> {
    let id = save.id.clone();
    begin(storage, &id, replace)?;
    let saved = write_part(storage, &id, cuts).and_then(|part| {
        save.parts.push(part);
        commit(storage, save)
    });
    if saved.is_err() {
        abandon(storage, &id);
    }
    saved
}

/// Commits the parts of all servers as a checkpoint.
pub fn commit(storage: &dyn Storage, commit: Commit) -> Result<Manifest> {
    let (from, to) = (temporary(&commit.id), directory(&commit.id));
    for file in commit.parts.iter().flat_map(|part| part.files.iter().chain(&part.dense_file)) {
        let path = format!("{from}/{}", file.path);
        match storage.size(&path).map_err(Error::storage("open", &path))? {
            None => return Err(Error::MissingFile { file: path }),
            Some(got) if got != file.bytes => return Err(Error::FileLength { file: path, expected: file.bytes, got }),
            Some(_) => {}
        }
    }
    let sparse = merge_sparse(&commit.parts)?;
    let work = commit.parts.first().map(|part| part.work.clone()).unwrap_or_default();
    if commit.parts.iter().any(|part| part.work != work) {
        return Err(Error::PartsDisagree { what: "what has been applied".into() });
    }
    let layers = layers(storage, &commit, &sparse)?;
    let (dense, dense_file) = dense::merge(storage, &from, &commit.parts)?;
    for part in &commit.parts {
        if let Some(file) = &part.dense_file {
            let path = format!("{from}/{}", file.path);
            storage.remove(&path).map_err(Error::storage("remove", &path))?;
        }
    }
    let states_file = match commit.states.is_empty() {
        true => None,
        false => {
            let mut writer = FileWriter::create(storage, &from, states::FILE)?;
            writer.write(&commit.states)?;
            Some(writer.finish()?)
        }
    };
    storage.sync_directory(&from).map_err(Error::storage("sync", &from))?;
    storage.rename(&from, &to).map_err(Error::storage("rename", &from))?;
    storage.sync_directory("").map_err(Error::storage("sync", &storage.name()))?;
    let steps = sparse.iter().map(|table| table.step).chain(dense.iter().map(|parameter| parameter.step));
    let manifest = Manifest {
        format: FORMAT.into(),
        version: version_of(&sparse, &dense, &layers),
        id: commit.id,
        moment: commit.moment,
        job: commit.job,
        run: commit.run,
        mode: commit.mode,
        workers: commit.workers,
        threads: commit.threads,
        servers: commit.parts.len() as u32,
        step: steps.max().unwrap_or(0),
        directory: to,
        dense_file: dense_file.as_ref().map(|file| file.path.clone()),
        states_file: states_file.as_ref().map(|file| file.path.clone()),
        work,
        position: commit.parts.first().map(|part| part.position.clone()).unwrap_or_default(),
        data: commit.data,
        files: commit.parts.into_iter().flat_map(|part| part.files).chain(dense_file).chain(states_file).collect(),
        sparse,
        dense,
        layers,
    };
    put_manifest(storage, &manifest)?;
    sweep(storage, &manifest);
    Ok(manifest)
}

/// The older saves that a delta needs; empty for a full save. Fails if the checkpoint at the address is not the one that the
/// delta is based on.
fn layers(storage: &dyn Storage, commit: &Commit, sparse: &[SparseEntry]) -> Result<Vec<Layer>> {
    let (expected, is_whole) = match &commit.replaces {
        Replaces::Anything => (None, true),
        Replaces::Whole(id) => (Some(id), true),
        Replaces::Changes(id) => (Some(id), false),
    };
    let standing = expected.map(|expected| match read_manifest(storage)? {
        standing if standing.id == *expected => Ok(standing),
        Manifest { id: got, .. } => {
            Err(Error::ReplacedMeanwhile { name: storage.name(), expected: expected.as_str().into(), got: got.into() })
        }
    });
    let standing = standing.transpose()?.filter(|_| !is_whole);
    let since = standing.as_ref().map(Manifest::moment);
    // A server without sparse tables has no rows that could change.
    if commit.parts.iter().any(|part| !part.sparse.is_empty() && part.since.as_deref() != since) {
        return Err(Error::PartsDisagree { what: "the save before".into() });
    }
    let Some(standing) = standing.filter(|_| !sparse.is_empty()) else { return Ok(Vec::new()) };
    let names = |tables: &[SparseEntry]| tables.iter().map(|table| table.name.clone()).collect::<Vec<_>>();
    if names(&standing.sparse) != names(sparse) {
        return Err(Error::DeltaWithout { what: "exactly the tables of the previous save" });
    }
    Ok(standing.into_layers())
}

/// The directory of a complete save.
fn directory(id: &str) -> String {
    format!("data-{id}")
}

/// Name of a manifest before it is committed.
fn new_manifest() -> String {
    format!("{MANIFEST}.saving")
}

/// Whether a manifest needs a directory.
fn is_named(manifest: &Manifest, directory: &str) -> bool {
    manifest.directory == directory || manifest.layers.iter().any(|layer| layer.directory == directory)
}

/// Replaces the manifest atomically.
fn put_manifest(storage: &dyn Storage, manifest: &Manifest) -> Result<()> {
    let new = new_manifest();
    let mut sink = storage.create(&new).map_err(Error::storage("create", &new))?;
    sink.write_all(&manifest.encode()?).map_err(Error::storage("write", &new))?;
    sink.sync().map_err(Error::storage("sync", &new))?;
    drop(sink);
    storage.rename(&new, MANIFEST).map_err(Error::storage("rename", &new))?;
    storage.sync_directory("").map_err(Error::storage("sync", &storage.name()))
}

/// Removes what earlier saves have left: only names that saves create, and only after the new manifest is in place.
fn sweep(storage: &dyn Storage, manifest: &Manifest) {
    for name in storage.list("").unwrap_or_default() {
        if is_of_a_save(&name) && !is_named(manifest, &name) {
            let _ = storage.remove(&name);
        }
    }
}

fn is_id(id: &str) -> bool {
    id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Merges the tables of all servers' parts.
fn merge_sparse(parts: &[ServerPart]) -> Result<Vec<SparseEntry>> {
    let mut tables: Vec<SparseEntry> = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        if number == 0 {
            tables.clone_from(&part.sparse);
            continue;
        }
        if part.sparse.len() != tables.len() {
            return Err(Error::PartsDisagree { what: "the number of sparse tables".into() });
        }
        for (table, theirs) in tables.iter_mut().zip(&part.sparse) {
            if table.name != theirs.name || table.spec != theirs.spec {
                return Err(Error::PartsDisagree { what: format!("table `{}`", table.name) });
            }
            table.step = table.step.max(theirs.step);
            table.stamp = table.stamp.max(theirs.stamp);
            table.rows += theirs.rows;
            table.parts.extend_from_slice(&theirs.parts);
        }
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::super::write::DenseCut;
    use super::*;
    use crate::checkpoint::Memory;
    use crate::{DenseSpec, Optimizer, Schedule, Sgd};

    /// A manifest of the save `id` on top of other saves.
    fn manifest(id: &str, layers: &[&str]) -> Manifest {
        let layer = |id: &&str| Layer {
            id: (*id).into(),
            step: 0,
            directory: directory(id),
            sparse: Vec::new(),
            files: Vec::new(),
        };
        Manifest {
            format: FORMAT.into(),
            version: if layers.is_empty() { 1 } else { 2 },
            id: id.into(),
            moment: None,
            job: String::new(),
            run: String::new(),
            mode: String::new(),
            workers: 1,
            threads: 1,
            servers: 1,
            step: 0,
            directory: directory(id),
            dense_file: None,
            states_file: None,
            work: Default::default(),
            position: serde_json::Value::Null,
            data: serde_json::Value::Null,
            files: Vec::new(),
            sparse: Vec::new(),
            dense: Vec::new(),
            layers: layers.iter().map(layer).collect(),
        }
    }

    const IDS: [&str; 3] = ["0000000000000001", "0000000000000002", "0000000000000003"];

    // Files in `.saving-ID` mean nothing in a directory, but everything in a storage where that is `data-ID`.
    #[test]
    fn files_that_the_manifest_names_are_not_abandoned() {
        let storage = Memory::new();
        for id in IDS {
            storage.put(&format!("{}/rows", temporary(id)), vec![1]);
        }
        put_manifest(&storage, &manifest(IDS[1], &[IDS[0]])).unwrap();
        for id in IDS {
            abandon(&storage, id);
        }
        let left = storage.list("").unwrap();
        assert_eq!(
            left,
            [temporary(IDS[0]), temporary(IDS[1]), MANIFEST.to_owned()],
            "its own files and those of its layer stay"
        );
    }

    #[test]
    fn nothing_is_abandoned_while_the_manifest_cannot_be_read() {
        let storage = Memory::new();
        storage.put(&format!("{}/rows", temporary(IDS[0])), vec![1]);
        storage.put(MANIFEST, b"half of a mani".to_vec());
        abandon(&storage, IDS[0]);
        assert_eq!(storage.list("").unwrap().len(), 2);
        storage.remove(MANIFEST).unwrap();
        abandon(&storage, IDS[0]);
        assert!(storage.files().is_empty(), "there is no manifest: it can be removed");
    }

    /// Two jobs save to one address at the same time: the later one fails, and what the other one saved stays intact.
    #[test]
    fn a_save_whose_files_another_save_removed_fails_and_changes_nothing() {
        let spec = DenseSpec {
            shape: vec![2],
            optimizer: Optimizer::Sgd(Sgd::default()),
            schedule: Schedule::Constant(1.0),
            regularizer: None,
            non_finite: Default::default(),
        };
        let values = vec![1.0, 2.0];
        let block = DenseCut { parameter: "w".into(), offset: 0, spec, values, state: Vec::new(), step: 0 };
        let cuts = || TableCuts {
            server: 0,
            buckets: 0..1,
            sparse: Vec::new(),
            dense: vec![block.clone()],
            work: Default::default(),
            position: serde_json::Value::Null,
        };
        let save = |id: &str| Commit { id: id.into(), ..Commit::default() };
        let storage = Memory::new();
        begin(&storage, IDS[0], true).unwrap();
        let late = Commit { parts: vec![write_part(&storage, IDS[0], cuts()).unwrap()], ..save(IDS[0]) };
        save_alone(&storage, save(IDS[1]), cuts(), true).unwrap();
        let error = commit(&storage, late).unwrap_err();
        assert!(matches!(&error, Error::MissingFile { .. }), "{error}");
        assert_eq!(find_manifest(&storage).unwrap().unwrap().id, IDS[1]);
    }

    #[test]
    fn names_of_saves_are_known_and_no_others() {
        for name in ["data-0123456789abcdef", ".saving-0123456789abcdef", "manifest.json.saving"] {
            assert!(is_of_a_save(name), "{name}");
        }
        for name in ["data-0123", "data-0123456789abcdeX", "saving-0123456789abcdef", "manifest.json", "model.onnx"] {
            assert!(!is_of_a_save(name), "{name}");
        }
    }
}
