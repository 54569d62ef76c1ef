//! The two kinds of dataset: which rows are returned, to which thread, in which order, and how much memory they take.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use openfleet_core::{Batch, Column, Field, FieldKind, Schema};
use openfleet_engine::dataset::{
    Criteo, Dataset, DatasetConfig, Error, Format, InMemoryDataset, MultiSlot, Progress, QueueDataset,
};
use tempfile::TempDir;

/// Files of numbered rows: row `n` of all rows has the id `n`.
fn numbered(folder: &TempDir, rows_of_files: &[u64]) -> Vec<PathBuf> {
    let mut next = 0;
    let mut files = Vec::new();
    for (index, rows) in rows_of_files.iter().enumerate() {
        let text: String =
            (next..next + rows).map(|row| format!("1 {row} {} {}\n", row % 3, "8 ".repeat(row as usize % 3))).collect();
        let path = folder.path().join(format!("part-{index}"));
        std::fs::write(&path, text).unwrap();
        files.push(path);
        next += rows;
    }
    files
}

fn config(files: Vec<PathBuf>) -> DatasetConfig {
    let fields = vec![Field::new("row", FieldKind::FixedIds { length: 1 }), Field::new("words", FieldKind::Ids)];
    DatasetConfig::new(Schema::new(fields).unwrap(), Format::MultiSlot(MultiSlot::default())).files(files)
}

fn loaded(config: DatasetConfig) -> InMemoryDataset {
    let mut dataset = InMemoryDataset::new(config).unwrap();
    dataset.load_into_memory().unwrap();
    dataset
}

fn row_numbers(batch: &Batch) -> Vec<u64> {
    let (Column::Ids { keys, .. }, Column::Ids { offsets, .. }) = (&batch.columns[0], &batch.columns[1]) else {
        panic!("both columns are ids")
    };
    assert_eq!((keys.len(), offsets.len()), (batch.rows, batch.rows + 1));
    for (row, number) in keys.iter().enumerate() {
        assert_eq!(u64::from(offsets[row + 1] - offsets[row]), number % 3, "row {number} has its own words");
    }
    keys.clone()
}

/// The batches of one pass in one thread.
fn pass(dataset: &dyn Dataset) -> Vec<Vec<u64>> {
    let reader = dataset.open().unwrap();
    let mut batch = Batch::default();
    let mut batches = Vec::new();
    while reader.next(&mut batch).unwrap() {
        batches.push(row_numbers(&batch));
    }
    assert!(!reader.next(&mut batch).unwrap(), "a pass that is over stays over");
    assert_eq!(batch.rows, 0);
    batches
}

fn all_rows(dataset: &dyn Dataset) -> Vec<u64> {
    pass(dataset).concat()
}

#[test]
fn one_thread_reads_the_files_in_order_pass_after_pass() {
    let folder = TempDir::new().unwrap();
    let files = numbered(&folder, &[5, 0, 30_000, 7]);
    let expected: Vec<u64> = (0..30_012).collect();
    let queue = QueueDataset::new(config(files.clone()).batch_size(512)).unwrap();
    let in_memory = loaded(config(files).batch_size(512));
    for dataset in [&queue as &dyn Dataset, &in_memory] {
        for _ in 0..2 {
            assert_eq!(all_rows(dataset), expected);
        }
    }
}

#[test]
fn the_last_partial_batch_is_returned_or_dropped_as_configured() {
    let folder = TempDir::new().unwrap();
    let files = numbered(&folder, &[4, 3, 3]);
    for (drop_last, expected) in [(false, vec![4, 4, 2]), (true, vec![4, 4])] {
        let config = config(files.clone()).batch_size(4).drop_last(drop_last);
        let queue = QueueDataset::new(config.clone()).unwrap();
        let in_memory = loaded(config);
        for dataset in [&queue as &dyn Dataset, &in_memory] {
            let sizes: Vec<usize> = pass(dataset).iter().map(Vec::len).collect();
            assert_eq!(sizes, expected);
        }
    }
}

#[test]
fn several_threads_get_every_row_once_and_one_partial_batch() {
    let folder = TempDir::new().unwrap();
    let files = numbered(&folder, &[9_000, 1, 12_000, 0, 3_000]);
    let config = config(files).batch_size(70).thread_num(3);
    let queue = QueueDataset::new(config.clone()).unwrap();
    let mut in_memory = loaded(config);
    in_memory.local_shuffle(1).unwrap();
    for dataset in [&queue as &dyn Dataset, &in_memory] {
        let reader = dataset.open().unwrap();
        let counts: Vec<AtomicU64> = (0..24_001).map(|_| AtomicU64::new(0)).collect();
        let partial = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut batch = Batch::default();
                    while reader.next(&mut batch).unwrap() {
                        for row in row_numbers(&batch) {
                            counts[row as usize].fetch_add(1, Ordering::Relaxed);
                        }
                        partial.fetch_add(u64::from(batch.rows < 70), Ordering::Relaxed);
                    }
                });
            }
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        assert_eq!(partial.into_inner(), 1);
        assert_eq!(reader.progress().rows, 24_001);
    }
}

#[test]
fn rows_loaded_by_several_threads_are_in_file_order() {
    let folder = TempDir::new().unwrap();
    let files = numbered(&folder, &[20_000, 5, 40_000, 1_000]);
    let dataset = loaded(config(files).batch_size(1_000).thread_num(4));
    assert_eq!(all_rows(&dataset), (0..61_005).collect::<Vec<u64>>());
}

#[test]
fn an_error_reaches_every_training_thread() {
    let folder = TempDir::new().unwrap();
    let mut files = numbered(&folder, &[1_000, 1_000]);
    files.push(folder.path().join("bad"));
    std::fs::write(&files[2], "1 1 1 x\n").unwrap();
    let dataset = QueueDataset::new(config(files).batch_size(10).thread_num(2)).unwrap();
    let reader = dataset.open().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut batch = Batch::default();
                let error = loop {
                    match reader.next(&mut batch) {
                        Ok(true) => {}
                        Ok(false) => panic!("the error was lost"),
                        Err(error) => break error,
                    }
                };
                assert!(matches!(error, Error::BadLine { line: 1, .. }), "{error}");
                assert_eq!(batch.rows, 0);
                assert!(reader.next(&mut batch).is_err(), "it stays");
            });
        }
    });
}

#[test]
fn one_thread_gets_the_rows_before_an_error_first() {
    let folder = TempDir::new().unwrap();
    let mut files = numbered(&folder, &[100]);
    files.push(folder.path().join("bad"));
    std::fs::write(&files[1], "1 1 1 x\n").unwrap();
    let dataset = QueueDataset::new(config(files).batch_size(50)).unwrap();
    let reader = dataset.open().unwrap();
    let mut batch = Batch::default();
    assert!(reader.next(&mut batch).unwrap());
    assert!(reader.next(&mut batch).unwrap());
    assert!(reader.next(&mut batch).is_err());
}

#[test]
fn dropping_a_pass_early_stops_its_readers_and_commands() {
    let folder = TempDir::new().unwrap();
    let files = numbered(&folder, &[200_000, 200_000]);
    let plain = QueueDataset::new(config(files.clone()).batch_size(10).thread_num(2)).unwrap();
    // A command that never ends, one whose rows are never read, and one that writes nothing.
    let endless = config(files.clone()).batch_size(10).thread_num(2).pipe_command("cat; sleep 600");
    let endless = QueueDataset::new(endless).unwrap();
    for dataset in [&plain, &endless] {
        for batches in [0, 1, 5] {
            let reader = dataset.open().unwrap();
            let mut batch = Batch::default();
            (0..batches).for_each(|_| assert!(reader.next(&mut batch).unwrap()));
            drop(reader);
        }
    }
    let silent = QueueDataset::new(config(files).pipe_command(
        "echo $$ > \"$OUT\"; sleep 600".replace("$OUT", &folder.path().join("pid").display().to_string()),
    ))
    .unwrap();
    let reader = silent.open().unwrap();
    let process = wait_for_text(&folder.path().join("pid"));
    drop(reader);
    let process = PathBuf::from("/proc").join(process.trim());
    assert!(!cfg!(target_os = "linux") || !process.exists(), "{} is still there", process.display());
}

/// Waits for the text that another process writes into a file.
fn wait_for_text(file: &std::path::Path) -> String {
    let started = Instant::now();
    loop {
        match std::fs::read_to_string(file) {
            Ok(text) if text.ends_with('\n') => return text,
            _ if started.elapsed() > Duration::from_secs(60) => panic!("nothing was written to {}", file.display()),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[test]
fn a_streaming_pass_reports_progress_in_bytes() {
    let folder = TempDir::new().unwrap();
    let files = numbered(&folder, &[10]);
    let bytes = std::fs::metadata(&files[0]).unwrap().len();
    let dataset = QueueDataset::new(config(files).batch_size(100)).unwrap();
    let reader = dataset.open().unwrap();
    let mut batch = Batch::default();
    while reader.next(&mut batch).unwrap() {}
    let expected = Progress { rows: 10, total_rows: None, bytes, total_bytes: Some(bytes), skipped_lines: 0 };
    assert_eq!(reader.progress(), expected);
    assert_eq!(dataset.rows(), None);
}

#[test]
fn a_shuffle_is_a_permutation_fixed_by_its_seed() {
    let folder = TempDir::new().unwrap();
    let mut dataset = loaded(config(numbered(&folder, &[20_000, 3_000])).batch_size(100));
    dataset.local_shuffle(7).unwrap();
    let first = all_rows(&dataset);
    dataset.local_shuffle(8).unwrap();
    let other = all_rows(&dataset);
    assert_ne!(first, other);
    dataset.local_shuffle(7).unwrap();
    assert_eq!(all_rows(&dataset), first, "whatever came between");
    let mut sorted = first;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..23_000).collect::<Vec<u64>>());
}

#[test]
fn calls_out_of_order_say_what_to_call_first() {
    let folder = TempDir::new().unwrap();
    let mut dataset = InMemoryDataset::new(config(numbered(&folder, &[10]))).unwrap();
    let text = |error: Error| openfleet_core::error::report(&error);
    assert_eq!(
        text(dataset.open().err().unwrap()),
        "cannot read batches: the dataset is not in memory\n\nhint: call `load_into_memory` first"
    );
    assert_eq!(
        text(dataset.local_shuffle(1).unwrap_err()),
        "cannot shuffle: the dataset is not in memory\n\nhint: call `load_into_memory` first"
    );
    assert_eq!(
        text(dataset.wait_preload_done().unwrap_err()),
        "cannot wait for a preload: no preload was started\n\nhint: call `preload_into_memory` first"
    );
    dataset.preload_into_memory().unwrap();
    assert_eq!(
        text(dataset.load_into_memory().unwrap_err()),
        "cannot load into memory: a preload is running\n\nhint: call `wait_preload_done` first"
    );
}

#[test]
fn released_rows_can_be_loaded_again() {
    let folder = TempDir::new().unwrap();
    let mut dataset = loaded(config(numbered(&folder, &[10])));
    assert_eq!((dataset.memory_rows(), dataset.rows()), (10, Some(10)));
    dataset.release_memory();
    assert_eq!((dataset.memory_rows(), dataset.memory_bytes(), dataset.rows()), (0, 0, None));
    assert!(dataset.open().is_err());
    dataset.load_into_memory().unwrap();
    assert_eq!(all_rows(&dataset).len(), 10);
}

#[test]
fn a_preload_reads_the_next_files_during_training() {
    let folder = TempDir::new().unwrap();
    let files = numbered(&folder, &[1_000, 500]);
    let mut dataset = loaded(config(files[..1].to_vec()).batch_size(100));
    dataset.set_files(&files[1..]);
    dataset.preload_into_memory().unwrap();
    assert_eq!(all_rows(&dataset), (0..1_000).collect::<Vec<u64>>());
    dataset.wait_preload_done().unwrap();
    assert_eq!(all_rows(&dataset), (1_000..1_500).collect::<Vec<u64>>());
}

#[test]
fn a_failed_preload_leaves_memory_unchanged() {
    let folder = TempDir::new().unwrap();
    let files = numbered(&folder, &[10]);
    let bad = folder.path().join("bad");
    std::fs::write(&bad, "garbage\n").unwrap();
    let mut dataset = loaded(config(files));
    dataset.set_files([folder.path().join("absent")]);
    assert!(matches!(dataset.preload_into_memory(), Err(Error::MissingFile { .. })));
    dataset.set_files([bad]);
    dataset.preload_into_memory().unwrap();
    assert!(matches!(dataset.wait_preload_done(), Err(Error::BadLine { .. })));
    assert_eq!(dataset.memory_rows(), 10);
}

#[test]
fn dropping_a_dataset_during_its_preload_kills_the_command() {
    let folder = TempDir::new().unwrap();
    let mut dataset = InMemoryDataset::new(config(numbered(&folder, &[10])).pipe_command("sleep 600")).unwrap();
    dataset.preload_into_memory().unwrap();
    drop(dataset);
}

#[test]
fn rows_in_memory_take_at_most_1_3_times_their_raw_arrays() {
    let folder = TempDir::new().unwrap();
    let rows = 50_000;
    let mut text = String::new();
    for row in 0..rows {
        text += &format!("{}", row % 2);
        (0..13).for_each(|column| text += &format!("\t{}", row % (column + 2)));
        (0..26).for_each(|column| text += &format!("\t{:08x}", row * 31 + column));
        text.push('\n');
    }
    let file = folder.path().join("criteo.tsv");
    std::fs::write(&file, text).unwrap();
    let format = Criteo::default();
    let config = DatasetConfig::new(format.schema(), Format::Criteo(format)).files([file]);
    let mut dataset = loaded(config);
    dataset.local_shuffle(1).unwrap();
    assert_eq!(dataset.memory_rows(), rows);
    let raw = rows * (26 * 8 + 13 * 4 + 8);
    let ratio = dataset.memory_bytes() as f64 / raw as f64;
    assert!((1.0..=1.3).contains(&ratio), "{ratio}");
}

/// Members of a shuffle in threads of one process: each sends its parts and receives those for it.
fn shuffled_together(datasets: &mut [InMemoryDataset], seed: u64) {
    let members = datasets.len();
    let table = std::sync::Mutex::new(vec![vec![Vec::new(); members]; members]);
    let meet = std::sync::Barrier::new(members);
    std::thread::scope(|scope| {
        for (rank, dataset) in datasets.iter_mut().enumerate() {
            let (table, meet) = (&table, &meet);
            scope.spawn(move || {
                let exchange = |parts: Vec<Vec<u8>>| {
                    table.lock().unwrap()[rank] = parts;
                    meet.wait();
                    let mine = (0..members).map(|from| table.lock().unwrap()[from][rank].clone()).collect();
                    meet.wait();
                    Ok::<_, Error>(mine)
                };
                dataset.global_shuffle(seed, rank, members, exchange).unwrap();
            });
        }
    });
}

#[test]
fn a_global_shuffle_gives_every_row_to_exactly_one_member() {
    let folder = TempDir::new().unwrap();
    let files = numbered(&folder, &[40_000, 7, 0, 3_000]);
    // The first has nearly all rows, the second one short file and an empty one, the third nothing.
    let mut datasets = vec![
        loaded(config(vec![files[0].clone(), files[3].clone()])),
        loaded(config(files[1..3].to_vec())),
        InMemoryDataset::new(config(Vec::new())).unwrap(),
    ];
    let of = |dataset: &InMemoryDataset| pass(dataset).concat();
    shuffled_together(&mut datasets, 5);
    let rows: Vec<Vec<u64>> = datasets.iter().map(of).collect();
    let mut all = rows.concat();
    all.sort_unstable();
    assert_eq!(all, (0..43_007).collect::<Vec<u64>>());
    for rows in &rows {
        // A third of 43 007 is 14 336, with a standard deviation of 98.
        assert!((13_900..14_800).contains(&rows.len()), "{} rows", rows.len());
        assert!(!rows.is_sorted());
    }
    shuffled_together(&mut datasets, 6);
    let again: Vec<Vec<u64>> = datasets.iter().map(of).collect();
    let stayed = again[0].iter().filter(|row| rows[0].contains(row)).count();
    assert!((4_300..5_300).contains(&stayed), "{stayed} of {} rows stayed, expected a third", again[0].len());
    let mut all = again.concat();
    all.sort_unstable();
    assert_eq!(all, (0..43_007).collect::<Vec<u64>>());
}

#[test]
fn members_of_a_global_shuffle_must_have_the_same_fields() {
    let folder = TempDir::new().unwrap();
    let files = numbered(&folder, &[100]);
    let mut dataset = loaded(config(files));
    let error = dataset.global_shuffle(1, 0, 2, |parts| Ok::<_, Error>(vec![parts[0].clone(), vec![0, 1, 2, 3]]));
    let error = error.unwrap_err();
    assert!(matches!(error, Error::OtherFields { member: 1 }), "{error}");
    assert_eq!(dataset.memory_rows(), 0);
}
