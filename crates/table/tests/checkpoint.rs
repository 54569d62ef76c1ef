//! Checkpoints that earlier versions wrote are read ever after. `fixtures/` was written by tests of `openfleet-dist`
//! (`checkpoint/reading.rs`) with `OPENFLEET_FIXTURE`, by two servers in sync mode: `checkpoint-v1` after three steps,
//! `checkpoint-v2` after three, four and six, of which the last two saves are of what had changed, and `checkpoint-v3`, with small
//! rows, after three and five.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test that opens files")]

use std::path::Path;

use openfleet_core::placement::{BUCKET_COUNT, Buckets};
use openfleet_table::checkpoint::{Manifest, Memory, Sequential, read_dense, read_manifest, read_sparse, verify};
use openfleet_table::{RowStorage, SparseTable};

fn copy(from: &Path, to: &Memory, prefix: &str) {
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = {
            let entry = entry.unwrap();
            (entry.path(), entry.file_name().into_string().unwrap())
        };
        if path.is_dir() {
            copy(&path, to, &format!("{prefix}{name}/"));
        } else {
            to.put(&format!("{prefix}{name}"), std::fs::read(&path).unwrap());
        }
    }
}

fn fixture(name: &str) -> (Memory, Manifest) {
    let storage = Memory::new();
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name), &storage, "");
    let manifest = read_manifest(&storage).unwrap();
    (storage, manifest)
}

#[test]
fn a_checkpoint_of_version_3_is_read() {
    let (storage, manifest) = fixture("checkpoint-v3");
    verify(&storage, &manifest).unwrap();
    assert_eq!((manifest.version, manifest.step, manifest.layers.len()), (3, 5, 1));
    let storages = manifest.sparse.iter().map(|entry| (entry.name.as_str(), entry.spec.storage));
    assert!(storages.eq([("emb", RowStorage::Bfloat16), ("ctr", RowStorage::Float32)]));
    for entry in &manifest.sparse {
        let table = SparseTable::new(entry.spec.clone()).unwrap();
        read_sparse(&storage, &manifest, entry, 0..BUCKET_COUNT, &table, true, &Sequential).unwrap();
        assert_eq!((table.len() as u64, table.step()), (entry.rows, 5));
        // Every row was pushed at least once: it has a mean square, of each part that it has.
        table.for_each(|key, _, state| assert!(state[0] > 0.0, "key {key}: {state:?}"));
    }
}

#[test]
fn a_checkpoint_of_version_2_is_read() {
    let (storage, manifest) = fixture("checkpoint-v2");
    verify(&storage, &manifest).unwrap();
    let steps: Vec<u64> = manifest.layers.iter().map(|layer| layer.step).collect();
    assert_eq!((manifest.version, manifest.step, steps), (2, 6, vec![3, 4]));
    let (_, older) = fixture("checkpoint-v1");
    for (entry, older) in manifest.sparse.iter().zip(&older.sparse) {
        let table = SparseTable::new(entry.spec.clone()).unwrap();
        read_sparse(&storage, &manifest, entry, 0..BUCKET_COUNT, &table, true, &Sequential).unwrap();
        assert_eq!((table.len() as u64, table.step()), (entry.rows, 6));
        assert!(entry.rows > older.rows && entry.spec == older.spec);
    }
}

#[test]
fn a_checkpoint_of_version_1_is_read() {
    let (storage, manifest) = fixture("checkpoint-v1");
    assert!(verify(&storage, &manifest).unwrap() > 1_000);
    assert_eq!((manifest.version, manifest.servers, manifest.step, manifest.mode.as_str()), (1, 2, 3, "sync"));
    assert_eq!(manifest.work.positions(), [(0, 3)].into());
    for entry in &manifest.sparse {
        let whole = SparseTable::new(entry.spec.clone()).unwrap();
        let rows = read_sparse(&storage, &manifest, entry, 0..BUCKET_COUNT, &whole, true, &Sequential).unwrap();
        assert_eq!((rows, whole.len() as u64, whole.step()), (entry.rows, entry.rows, 3));
        assert!(rows > 50);
        // Three servers have the same rows together.
        let buckets = Buckets::new(3).unwrap();
        let mut total = 0;
        for server in 0..3 {
            let part = SparseTable::new(entry.spec.clone()).unwrap();
            total += read_sparse(&storage, &manifest, entry, buckets.range(server), &part, true, &Sequential).unwrap();
            part.for_each_row(|row| whole.read_row(row.key, |other| assert_eq!(row, other)).unwrap());
        }
        assert_eq!(total, rows);
    }
    let dense = read_dense(&storage, &manifest).unwrap();
    assert_eq!((dense["fc.w"].values.len(), dense["fc.w"].state.len(), dense["fc.w"].step), (6, 12, 3));
    // Adam from 0.5 with gradients 0.01, 0.02, 0.03 at rate 0.1, worked out by hand in doubles: each step is close to the rate.
    let mut value = 0.5f64;
    let (mut m, mut v) = (0.0f64, 0.0f64);
    for (step, gradient) in [(1, 0.01f64), (2, 0.02), (3, 0.03)] {
        (m, v) = (0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient * gradient);
        value -= 0.1 * (m / (1.0 - 0.9f64.powi(step))) / ((v / (1.0 - 0.999f64.powi(step))).sqrt() + 1e-8);
    }
    dense["fc.w"].values.iter().for_each(|got| assert!((f64::from(*got) - value).abs() < 1e-5, "{got} {value}"));
}
