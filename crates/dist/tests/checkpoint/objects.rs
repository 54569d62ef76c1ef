//! A checkpoint in an object store: the same bytes under the same names as anywhere else, and still all or nothing.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

use openfleet_core::strategy::Mode;
use openfleet_dist::SaveOptions;
use openfleet_dist::storage::objects::Objects;
use openfleet_dist::storage::objects::object_store::ObjectStore;
use openfleet_dist::storage::objects::object_store::memory::InMemory;
use openfleet_table::checkpoint::{
    MANIFEST, Manifest, Memory, Storage, abandon, begin, read_manifest, reshard, verify,
};

use crate::harness::{cluster, content, servers, tables, train};

fn objects(store: &Arc<InMemory>, prefix: &str) -> Objects {
    Objects::new(store.clone() as Arc<dyn ObjectStore>, prefix, &format!("memory://{prefix}")).unwrap()
}

fn put(storage: &dyn Storage, path: &str, bytes: &[u8]) {
    let mut sink = storage.create(path).unwrap();
    sink.write_all(bytes).unwrap();
    sink.sync().unwrap();
}

fn get(storage: &dyn Storage, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    storage.open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// Every file of a manifest, and the manifest.
fn files(storage: &dyn Storage, manifest: &Manifest) -> BTreeMap<String, Vec<u8>> {
    let paths = manifest.all_files().map(|(directory, file)| format!("{directory}/{}", file.path));
    paths.chain([MANIFEST.to_owned()]).map(|path| (path.clone(), get(storage, &path))).collect()
}

#[test]
fn files_come_and_go_under_their_names() {
    let store = Arc::new(InMemory::new());
    let (storage, beside) = (objects(&store, "jobs/ctr"), objects(&store, "jobs/ctr2"));
    put(&beside, "file", b"not ours");
    assert_eq!(storage.size("file").unwrap(), None);
    assert_eq!(storage.list("").unwrap(), Vec::<String>::new());
    put(&storage, "file", b"abc");
    put(&storage, "folder/one", b"");
    put(&storage, "folder/deep/two", b"2");
    assert_eq!(storage.list("").unwrap(), ["file", "folder"]);
    assert_eq!(storage.list("folder").unwrap(), ["deep", "one"]);
    assert_eq!((storage.size("file").unwrap(), storage.size("folder/one").unwrap()), (Some(3), Some(0)));
    assert_eq!((get(&storage, "file"), get(&storage, "folder/one")), (b"abc".to_vec(), Vec::new()));
    assert_eq!((*storage.map("folder/deep/two").unwrap()).as_ref(), b"2");
    put(&storage, "file", b"newer");
    storage.rename("file", "folder/one").unwrap();
    assert_eq!((storage.size("file").unwrap(), get(&storage, "folder/one")), (None, b"newer".to_vec()));
    storage.remove("folder").unwrap();
    storage.remove("folder").unwrap();
    assert_eq!(storage.list("").unwrap(), Vec::<String>::new());
    assert_eq!(get(&beside, "file"), b"not ours");
    let missing = storage.open("nothing").map(drop).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    assert!(missing.to_string().contains("jobs/ctr/nothing"), "{missing}");
}

#[test]
fn a_large_file_is_uploaded_in_parts_and_downloaded_in_pieces() {
    let store = Arc::new(InMemory::new());
    let storage = objects(&store, "");
    let bytes: Vec<u8> = (0..(41 << 20) + 7u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut sink = storage.create("large").unwrap();
    for chunk in bytes.chunks(1_000_003) {
        sink.write_all(chunk).unwrap();
    }
    assert_eq!(storage.size("large").unwrap(), None, "nothing is seen of it before it is whole");
    sink.sync().unwrap();
    sink.sync().unwrap();
    assert!(sink.write_all(b"more").is_err());
    assert_eq!(storage.size("large").unwrap(), Some(bytes.len() as u64));
    assert!(get(&storage, "large") == bytes);
    assert!((*storage.map("large").unwrap()).as_ref() == bytes);
    for from in [1, 8 << 20, (20 << 20) + 3, bytes.len()] {
        let mut rest = Vec::new();
        storage.open_at("large", from as u64).unwrap().read_to_end(&mut rest).unwrap();
        assert!(rest == bytes[from..], "from {from}");
    }
    let mut given_up = storage.create("given up").unwrap();
    given_up.write_all(&bytes).unwrap();
    drop(given_up);
    assert_eq!(storage.list("").unwrap(), ["large"]);
}

#[test]
fn it_can_be_called_from_a_thread_of_a_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let storage = objects(&Arc::new(InMemory::new()), "x");
        put(&storage, "file", b"abc");
        assert_eq!(get(&storage, "file"), b"abc");
        drop(storage);
    });
}

#[test]
fn a_checkpoint_is_the_same_bytes_as_in_memory() {
    let memory = Memory::new();
    let tables = tables();
    let states = servers(2, &(Arc::new(memory.clone()) as Arc<dyn Storage>));
    let worker = cluster(&states, 0, 1, Mode::Sync);
    train(&worker, &tables, 0..5);
    worker.save("m", &SaveOptions::default()).unwrap();
    // The same save, copied to each: rows of a table have no fixed order, so two saves may differ in it.
    let (source, id) = (read_manifest(&memory).unwrap(), "00000000000000aa");
    let (twin, storage) = (Memory::new(), objects(&Arc::new(InMemory::new()), "a/b"));
    let buckets = openfleet_core::placement::Buckets::new(3).unwrap();
    let expected = reshard(&memory, &source, &twin, id, buckets, false).unwrap();
    let written = reshard(&memory, &source, &storage, id, buckets, false).unwrap();
    assert_eq!(written, expected);
    assert!(files(&storage, &written) == twin.files(), "file by file, manifest and all");
    assert_eq!(storage.list("").unwrap(), twin.list("").unwrap());
}

#[test]
fn a_job_saves_to_replaces_in_and_resumes_from_a_bucket() {
    let (store, tables) = (Arc::new(InMemory::new()), tables());
    let storage = Arc::new(objects(&store, "model"));
    let shared = storage.clone() as Arc<dyn Storage>;
    let states = servers(2, &shared);
    let worker = cluster(&states, 0, 1, Mode::Sync);
    train(&worker, &tables, 0..3);
    let first = worker.save("m", &SaveOptions::default()).unwrap();
    assert_eq!(storage.list("").unwrap(), [first.directory.as_str(), MANIFEST]);
    verify(storage.as_ref(), &first).unwrap();
    train(&worker, &tables, 3..6);
    let second = worker.save("m", &SaveOptions::default()).unwrap();
    assert_eq!(storage.list("").unwrap(), [second.directory.as_str(), MANIFEST], "the older one is gone");
    let (_, saved) = content(storage.as_ref()).unwrap();
    // Three other servers load it and save it elsewhere.
    let copy = Arc::new(objects(&store, "copy"));
    let states = servers(3, &shared);
    states.iter().for_each(|state| drop(state.resume_from("m", openfleet_dist::Resume::Run).unwrap()));
    let worker = cluster(&states, 0, 1, Mode::Sync);
    worker.communicator(&tables.0, &tables.1).unwrap();
    reshard(
        storage.as_ref(),
        &second,
        copy.as_ref(),
        "00000000000000bb",
        openfleet_core::placement::Buckets::new(3).unwrap(),
        false,
    )
    .unwrap();
    assert_eq!(content(copy.as_ref()).unwrap().1, saved);
    let third = worker.save("m", &SaveOptions::default()).unwrap();
    assert_eq!(third.servers, 3);
    assert_eq!(content(storage.as_ref()).unwrap().1, saved, "loaded and saved again, to the bit");
}

#[test]
fn a_delta_save_keeps_the_saves_it_needs() {
    let (store, tables) = (Arc::new(InMemory::new()), tables());
    let storage = Arc::new(objects(&store, "model"));
    let states = servers(2, &(storage.clone() as Arc<dyn Storage>));
    let worker = cluster(&states, 0, 1, Mode::Sync);
    let delta = SaveOptions { delta: true, ..SaveOptions::default() };
    let mut manifests = Vec::new();
    for step in 0..3 {
        train(&worker, &tables, step..step + 1);
        manifests.push(worker.save("m", &delta).unwrap());
    }
    let last = manifests.last().unwrap();
    assert_eq!(last.layers.len(), 2);
    let mut names: Vec<_> = manifests.iter().map(|manifest| manifest.directory.clone()).collect();
    names.sort_unstable();
    names.push(MANIFEST.to_owned());
    assert_eq!(storage.list("").unwrap(), names);
    verify(storage.as_ref(), last).unwrap();
    // A late request to abort one of them removes nothing.
    for manifest in &manifests {
        abandon(storage.as_ref(), &manifest.id);
    }
    verify(storage.as_ref(), last).unwrap();
    let (_, chain) = content(storage.as_ref()).unwrap();
    worker.save("m", &SaveOptions::default()).unwrap();
    assert_eq!(storage.list("").unwrap().len(), 2, "a whole save needs none of them");
    assert_eq!(content(storage.as_ref()).unwrap().1, chain);
}

#[test]
fn a_save_that_came_to_nothing_leaves_the_one_before_and_nothing_else() {
    let (store, tables) = (Arc::new(InMemory::new()), tables());
    let storage = Arc::new(objects(&store, "model"));
    let states = servers(2, &(storage.clone() as Arc<dyn Storage>));
    let worker = cluster(&states, 0, 1, Mode::Sync);
    train(&worker, &tables, 0..2);
    let standing = worker.save("m", &SaveOptions::default()).unwrap();
    let id = "00000000000000cc";
    begin(storage.as_ref(), id, true).unwrap();
    put(storage.as_ref(), &format!(".saving-{id}/00-emb/0000-4095.keys.npy"), b"some rows");
    assert_eq!(read_manifest(storage.as_ref()).unwrap(), standing, "nobody reads what is being written");
    abandon(storage.as_ref(), id);
    assert_eq!(storage.list("").unwrap(), [standing.directory.as_str(), MANIFEST]);
    put(storage.as_ref(), &format!(".saving-{id}/00-emb/0000-4095.keys.npy"), b"some rows");
    let next = worker.save("m", &SaveOptions::default()).unwrap();
    assert_eq!(storage.list("").unwrap(), [next.directory.as_str(), MANIFEST], "the next save sweeps up");
}
