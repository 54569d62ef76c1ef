//! A checkpoint in real files, and reading it with NumPy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use openfleet_core::strategy::Mode;
use openfleet_dist::storage::Directory;
use openfleet_dist::{LoadOptions, SaveOptions, State};
use openfleet_table::checkpoint::{Manifest, verify};
use openfleet_table::{Accessor, Adam, CtrOptions, Optimizer, RowStorage, RowwiseAdagrad, Sgd, SparseSpec};

use crate::harness::{Tables, cluster, content, dense, sparse, train};

fn small_tables() -> Tables {
    let adam = Optimizer::Adam(Adam::default());
    let ctr = Accessor::Ctr(CtrOptions::default());
    let tables = vec![
        ("emb".to_owned(), sparse(3, adam, Accessor::Plain)),
        ("ctr".to_owned(), sparse(2, Optimizer::Sgd(Sgd::default()), ctr)),
    ];
    (tables, vec![("fc.w".to_owned(), dense(&[2, 3], adam), vec![0.5; 6])])
}

/// The same with rows that need little memory: one float of state per row, and weights of 16 bits in one of the tables.
fn tables_of_small_rows() -> Tables {
    let rule = Optimizer::RowwiseAdagrad(RowwiseAdagrad::default());
    let ctr = Accessor::Ctr(CtrOptions::default());
    let narrow = SparseSpec { storage: RowStorage::Bfloat16, ..sparse(3, rule, Accessor::Plain) };
    let tables = vec![("emb".to_owned(), narrow), ("ctr".to_owned(), sparse(2, rule, ctr))];
    (tables, vec![("fc.w".to_owned(), dense(&[2, 3], rule.for_dense()), vec![0.5; 6])])
}

/// Two servers, three steps.
fn save(directory: &Path) -> Manifest {
    save_chain(directory, &small_tables(), &[3])
}

/// Two servers that save after these numbers of steps: first everything, then deltas.
fn save_chain(directory: &Path, tables: &Tables, steps: &[u64]) -> Manifest {
    let states = [Arc::new(State::new()), Arc::new(State::new())];
    let worker = cluster(&states, 0, 1, Mode::Sync);
    let (mut at, mut saved) = (0, None);
    for &step in steps {
        train(&worker, tables, at..step);
        let options = SaveOptions { delta: at > 0, ..SaveOptions::default() };
        saved = Some(worker.save(&directory.to_string_lossy(), &options).unwrap());
        at = step;
    }
    saved.unwrap()
}

/// In `OPENFLEET_FIXTURE`, to create what `crates/table/tests/fixtures` has of this version, or else in another directory.
fn fixture(name: &str, elsewhere: &Path) -> PathBuf {
    let fixtures = std::env::var_os("OPENFLEET_FIXTURE").map(PathBuf::from);
    fixtures.unwrap_or_else(|| elsewhere.join("new")).join(name)
}

#[test]
fn a_chain_of_deltas_in_files_equals_one_full_save() {
    let directory = tempfile::tempdir().unwrap();
    let chain = fixture("checkpoint-v2", directory.path());
    let manifest = save_chain(&chain, &small_tables(), &[3, 4, 6]);
    assert_eq!((manifest.version, manifest.layers.len()), (2, 2));
    verify(&Directory::new(&chain), &manifest).unwrap();
    let whole = directory.path().join("whole");
    save_chain(&whole, &small_tables(), &[6]);
    assert!(content(&Directory::new(&chain)).unwrap().1 == content(&Directory::new(&whole)).unwrap().1);
}

#[test]
fn small_rows_in_files_are_resumed_by_another_number_of_servers_bit_by_bit() {
    let directory = tempfile::tempdir().unwrap();
    let (chain, tables) = (fixture("checkpoint-v3", directory.path()), tables_of_small_rows());
    let manifest = save_chain(&chain, &tables, &[3, 5]);
    assert_eq!((manifest.version, manifest.layers.len(), manifest.servers), (3, 1, 2));
    verify(&Directory::new(&chain), &manifest).unwrap();
    // Three servers continue from there, and are where two would be that were never stopped.
    let states: [_; 3] = std::array::from_fn(|_| Arc::new(State::new()));
    let worker = cluster(&states, 0, 1, Mode::Sync);
    worker.load(&chain.to_string_lossy(), LoadOptions::default()).unwrap();
    train(&worker, &tables, 5..8);
    let resumed = directory.path().join("resumed");
    worker.save(&resumed.to_string_lossy(), &SaveOptions::default()).unwrap();
    let whole = directory.path().join("whole");
    save_chain(&whole, &tables, &[8]);
    let rows = |path: &Path| content(&Directory::new(path)).unwrap().1.rows;
    assert!(rows(&resumed) == rows(&whole));
    let narrow = |bits: &u32| bits & 0xffff == 0;
    assert!(rows(&whole).iter().all(|((table, _), row)| table != "emb" || row.1.iter().all(narrow)));
}

#[test]
fn files_have_the_same_bytes_as_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = fixture("checkpoint-v1", directory.path());
    let manifest = save(&path);
    let storage = Directory::new(&path);
    assert!(verify(&storage, &manifest).unwrap() > 1_000);
    let (read, content) = content(&storage).unwrap();
    assert_eq!(read, manifest);
    assert_eq!(content.dense["fc.w"].0.len(), 6);
    let replaced = save(&path);
    let names: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "the older one is gone: {names:?}");
    assert_ne!(replaced.directory, manifest.directory);
}

/// The lines of the documentation, verbatim.
#[test]
fn three_lines_of_numpy_read_a_row() {
    let python = std::env::var("OPENFLEET_PYTHON").unwrap_or_else(|_| "python3".into());
    if !Command::new(&python).args(["-c", "import numpy"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: `{python}` has no numpy; name one that has in OPENFLEET_PYTHON");
        return;
    }
    let page = include_str!("../../../../docs/reference/checkpoint.md");
    let block = |number| page.split("```python\n").nth(number).unwrap().split("```").next().unwrap();
    let (lines, for_bfloat16) = (block(1), block(2));
    assert_eq!((lines.lines().count(), for_bfloat16.lines().count()), (3, 2));
    let directory = tempfile::tempdir().unwrap();
    let saved = [("floats", small_tables()), ("small", tables_of_small_rows())].map(|(name, tables)| {
        let path = directory.path().join(name);
        let manifest = save_chain(&path, &tables, &[3]);
        let (_, content) = content(&Directory::new(&path)).unwrap();
        (path, manifest, content)
    });
    let tables = saved.iter().flat_map(|saved| saved.1.sparse.iter().map(move |table| (saved, table)));
    for ((path, manifest, content), table) in tables {
        let part = &table.parts[0];
        let prefix = path.join(&manifest.directory).join(&part.prefix);
        let program = format!(
            "import sys\npart, key = sys.argv[1], None\nimport numpy as np\nkey = np.load(part + '.keys.npy')[5]\n{lines}\n{for_bfloat16}\n\
             stats = np.load(part + '.stats.npy', mmap_mode='r')\n\
             print(key, len(keys), weights.shape[1], stats['stamp'][5], *row.view('u4'))"
        );
        let output = Command::new(&python).args(["-c", &program]).arg(&prefix).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).unwrap();
        let numbers: Vec<u64> = printed.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let row = &content.rows[&(table.name.clone(), numbers[0])];
        assert_eq!(numbers[1..4], [part.rows, table.spec.dim as u64, u64::from(row.0)]);
        assert_eq!(numbers[4..], row.1.iter().map(|&bits| u64::from(bits)).collect::<Vec<_>>());
    }
}
