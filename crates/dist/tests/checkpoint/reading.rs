//! A checkpoint in real files, and what NumPy makes of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use openfleet_core::strategy::Mode;
use openfleet_dist::storage::Directory;
use openfleet_dist::{SaveOptions, State};
use openfleet_table::checkpoint::{Manifest, verify};
use openfleet_table::{Accessor, Adam, CtrOptions, Optimizer, Sgd};

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

/// Two servers, three steps.
fn save(directory: &Path) -> Manifest {
    let (states, tables) = ([Arc::new(State::new()), Arc::new(State::new())], small_tables());
    let worker = cluster(&states, 0, 1, Mode::Sync);
    train(&worker, &tables, 0..3);
    worker.save(&directory.to_string_lossy(), &SaveOptions::default()).unwrap()
}

/// `OPENFLEET_FIXTURE` writes what `crates/table/tests/fixtures` keeps of this version.
#[test]
fn files_hold_what_memory_would() {
    let directory = tempfile::tempdir().unwrap();
    let fixture = std::env::var_os("OPENFLEET_FIXTURE").map(PathBuf::from);
    let path = fixture.unwrap_or_else(|| directory.path().join("new").join("checkpoint"));
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

/// The lines of the documentation, as they stand there.
#[test]
fn three_lines_of_numpy_read_a_row() {
    let python = std::env::var("OPENFLEET_PYTHON").unwrap_or_else(|_| "python3".into());
    if !Command::new(&python).args(["-c", "import numpy"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: `{python}` has no numpy; name one that has in OPENFLEET_PYTHON");
        return;
    }
    let page = include_str!("../../../../docs/reference/checkpoint.md");
    let lines = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(lines.lines().count(), 3);
    let directory = tempfile::tempdir().unwrap();
    let manifest = save(directory.path());
    let storage = Directory::new(directory.path());
    let (_, content) = content(&storage).unwrap();
    for table in &manifest.sparse {
        let part = &table.parts[0];
        let prefix = directory.path().join(&manifest.directory).join(&part.prefix);
        let program = format!(
            "import sys\npart, key = sys.argv[1], None\nimport numpy as np\nkey = np.load(part + '.keys.npy')[5]\n{lines}\n\
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
