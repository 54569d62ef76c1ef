//! Crashes, full disks and flipped bits.

use std::sync::Arc;

use openfleet_core::strategy::Mode;
use openfleet_dist::{Error, Resume, SaveOptions};
use openfleet_table::Error as TableError;
use openfleet_table::checkpoint::{MANIFEST, Memory, Storage, read_manifest, verify};
use openfleet_testkit::storage::{FailingStorage, Fault};

use crate::harness::{cluster, content, servers, tables, train};

/// Trains and saves twice, the second time with a fault. Returns the storage after the first save and after the second, and the
/// second result.
fn save_twice(fault: Fault) -> (Memory, Memory, openfleet_dist::Result<()>, u64) {
    save_twice_with(fault, &SaveOptions::default())
}

fn save_twice_with(fault: Fault, options: &SaveOptions) -> (Memory, Memory, openfleet_dist::Result<()>, u64) {
    let (memory, tables) = (Memory::new(), tables());
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let states = servers(2, &storage);
    let worker = cluster(&states, 0, 1, Mode::Sync);
    train(&worker, &tables, 0..2);
    worker.save("anywhere", &SaveOptions::default()).unwrap();
    let first = Memory::new();
    memory.files().into_iter().for_each(|(path, bytes)| first.put(&path, bytes));
    drop(worker);
    // Other servers, whose storage may fail, continue.
    let failing = FailingStorage::new(Arc::new(memory.clone()), fault);
    let storage: Arc<dyn Storage> = Arc::new(failing.clone());
    let states = servers(2, &storage);
    states.iter().for_each(|state| drop(state.resume_from("anywhere", Resume::Run).unwrap()));
    let worker = cluster(&states, 0, 1, Mode::Sync);
    train(&worker, &tables, 0..2);
    train(&worker, &tables, 2..4);
    let saved = worker.save("anywhere", options).map(drop);
    if saved.is_err() {
        // Training continues, whatever happened to the checkpoint.
        train(&worker, &tables, 4..5);
    }
    (first, memory, saved, failing.operations())
}

#[test]
fn after_a_crash_in_a_save_the_old_or_the_new_checkpoint_loads() {
    for delta in [false, true] {
        let options = SaveOptions { delta, ..SaveOptions::default() };
        let (_, new, saved, operations) = save_twice_with(Fault::Never, &options);
        saved.unwrap();
        let (manifest, new) = content(&new).unwrap();
        assert_eq!(manifest.layers.len(), usize::from(delta));
        let (mut old_ones, mut new_ones) = (0, 0);
        for at in 0..operations {
            for fault in [Fault::DiesBefore(at), Fault::DiesAfter(at), Fault::DiesHalfway(at)] {
                let (first, memory, ..) = save_twice_with(fault, &options);
                let (manifest, got) = content(&memory).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
                verify(&memory, &manifest).unwrap();
                if got == new {
                    new_ones += 1;
                } else {
                    assert!(got == content(&first).unwrap().1, "{fault:?}: neither the old one nor the new one");
                    old_ones += 1;
                }
            }
        }
        assert!(old_ones > 50 && new_ones > 3, "{old_ones} old, {new_ones} new: nothing was shown");
        println!("{operations} operations, {old_ones} times the old checkpoint, {new_ones} times the new one");
    }
}

#[test]
fn leftovers_of_a_save_that_died_are_gone_after_the_next_one() {
    let (_, memory, saved, _) = save_twice(Fault::DiesBefore(25));
    assert!(saved.is_err());
    assert!(memory.list("").unwrap().len() > 2, "something was left: {:?}", memory.list(""));
    memory.put("data-of-the-user", vec![1]);
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let states = servers(1, &storage);
    let worker = cluster(&states, 0, 1, Mode::Sync);
    train(&worker, &tables(), 0..1);
    let manifest = worker.save("anywhere", &SaveOptions::default()).unwrap();
    assert_eq!(memory.list("").unwrap(), [manifest.directory.as_str(), "data-of-the-user", MANIFEST]);
}

#[test]
fn on_a_full_disk_the_old_checkpoint_stays_and_training_continues() {
    let (.., operations) = save_twice(Fault::Never);
    for at in [0, operations / 3, operations / 2] {
        let (first, memory, saved, _) = save_twice(Fault::Full(at));
        match saved {
            Err(error @ Error::Checkpoint { source: TableError::Storage { .. }, .. }) => {
                let said = openfleet_core::error::report(&error);
                assert!(said.contains("No space left") && said.contains("hint: free some space"), "{said}");
            }
            other => panic!("{other:?}"),
        }
        assert!(content(&memory).unwrap().1 == content(&first).unwrap().1);
        assert_eq!(memory.list("").unwrap().len(), 2, "what was written of it is gone");
    }
}

#[test]
fn one_flipped_bit_is_refused_with_file_and_offset_wherever_it_is() {
    let (_, memory, saved, _) = save_twice(Fault::Never);
    saved.unwrap();
    let files = memory.files();
    let total: usize = files.values().map(Vec::len).sum();
    for number in 0..1_000 {
        let mut at = number * total / 1_000;
        let (path, bytes) = files
            .iter()
            .find(|(_, bytes)| {
                let here = at < bytes.len();
                at -= if here { 0 } else { bytes.len() };
                here
            })
            .unwrap();
        let mut wrong = bytes.clone();
        wrong[at] ^= 1 << (number % 8);
        memory.put(path, wrong);
        let refused = read_manifest(&memory).and_then(|manifest| verify(&memory, &manifest));
        match refused {
            Err(TableError::DamagedBlock { file, offset, length, flip }) => {
                assert_eq!(file, *path);
                assert!((offset..offset + length).contains(&(at as u64)));
                // Except for the manifest's own checksum, which is the other side of the comparison.
                assert!(flip.is_none_or(|flip| flip.offset == at as u64 && flip.bit == number as u32 % 8));
                assert!(flip.is_some() || path == MANIFEST, "{path} {at}");
            }
            other => panic!("{path} {at}: {other:?}"),
        }
        memory.put(path, bytes.clone());
    }
}

#[test]
fn a_checkpoint_is_replaced_or_not_as_asked() {
    let memory = Memory::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let states = servers(1, &storage);
    let worker = cluster(&states, 0, 1, Mode::Sync);
    assert!(matches!(worker.save("anywhere", &SaveOptions::default()), Err(Error::NothingToSave)));
    train(&worker, &tables(), 0..1);
    let careful = SaveOptions { replace: false, data: serde_json::json!({"epoch": 3}), ..SaveOptions::default() };
    let manifest = worker.save("anywhere", &careful).unwrap();
    assert_eq!(manifest.data["epoch"], 3);
    let error = worker.save("anywhere", &careful).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { source: TableError::CheckpointExists { .. }, .. }), "{error}");
    let other = worker.save("anywhere", &SaveOptions::default()).unwrap();
    assert_eq!(read_manifest(&memory).unwrap().id, other.id);
}
