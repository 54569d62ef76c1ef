//! How fast a table is saved and loaded compared with the disk, and how that affects pushes: `cargo bench -p openfleet-dist
//! --bench checkpoint`, with a number of million rows as an argument to try another size.
//!
//! Rows of 20 floats: ten weights and their AdaGrad state. The disk's own speed is that of the same bytes written front to back and
//! synced, or read, in turns with the table's in the same run. Before something is read the system is asked to forget it,
//! which it does for root only; the line says so where it did not. Nothing here is asserted.

#![allow(clippy::print_stdout, reason = "the lines are the result")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use openfleet_core::placement::BUCKET_COUNT;
use openfleet_dist::fresh_save_id;
use openfleet_dist::storage::Directory;
use openfleet_dist::threads::Threads;
use openfleet_table::checkpoint::{
    Commit, Manifest, MappedTable, Replaces, SparseCut, TableCuts, Work, read_sparse, save_alone, verify,
};
use openfleet_table::sparse::DEFAULT_SHARDS;
use openfleet_table::{Adagrad, Initializer, Missing, Optimizer, Schedule, Scratch, SparseSpec, SparseTable};
use openfleet_testkit::bench::size;

const DIM: usize = 10;
const REQUEST: usize = 4096;
const ROUNDS: usize = 3;

fn main() {
    let millions = std::env::args().find_map(|argument| argument.parse::<usize>().ok()).unwrap_or(10);
    let rows = size(millions * 1_000_000, 10_000);
    let table = Arc::new(SparseTable::new(spec()).expect("a sound specification"));
    fill(&table, rows);
    // In the build directory, because a temporary directory may be in memory.
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("room for a checkpoint");
    let (path, plain) = (place.path().join("checkpoint"), place.path().join("plain"));
    println!("{rows} rows of 20 floats");
    let mut best = [f64::INFINITY; 5];
    let mut manifest = None;
    for _ in 0..size(ROUNDS, 1) {
        let saved = timed(&mut best[0], || save(&path, &table, false));
        let bytes = bytes_of(&saved);
        timed(&mut best[1], || write_plainly(&plain, bytes));
        let cold = forget();
        timed(&mut best[2], || load(&path, &saved));
        let cold = forget() && cold;
        timed(&mut best[3], || read_plainly(&plain));
        let cold = forget() && cold;
        timed(&mut best[4], || read_and_forget(&plain));
        if !cold {
            println!("the system was not asked to forget what it has read: loading is from memory");
        }
        manifest = Some(saved);
    }
    let manifest = manifest.expect("at least one round");
    let speed = |seconds: f64| bytes_of(&manifest) as f64 / seconds / 1e6;
    println!("saved:  {:7.0} MB/s, the disk {:7.0}: {:.2}", speed(best[0]), speed(best[1]), best[1] / best[0]);
    println!("loaded: {:7.0} MB/s, the disk {:7.0}: {:.2}", speed(best[2]), speed(best[4]), best[4] / best[2]);
    println!("        a file read into memory, as rows have to be: {:7.0}: {:.2}", speed(best[3]), best[3] / best[2]);
    let mut others = [f64::INFINITY; 2];
    timed(&mut others[0], || verify(&Directory::new(&path), &manifest).expect("it is whole"));
    let map = || MappedTable::open(&Directory::new(&path), &manifest, &manifest.sparse[0], spec());
    let mapped = timed(&mut others[1], map).expect("it is whole");
    println!("verified in {:.2} s, mapped for prediction in {:.2} s", others[0], others[1]);
    let (mut pulls, mut random) = (f64::INFINITY, Random(7));
    let (requests, mut out) = (200, vec![0.0; REQUEST * DIM]);
    let keys: Vec<Vec<u64>> = (0..requests).map(|_| random.keys(rows)).collect();
    for _ in 0..size(ROUNDS, 1) {
        timed(&mut pulls, || keys.iter().for_each(|keys| mapped.pull(keys, &mut out).expect("lengths agree")));
    }
    println!("pulled where it is mapped: {:.1} M rows/s", (requests * REQUEST) as f64 / pulls / 1e6);
    while_pushing(&path, &table, rows);
}

fn spec() -> SparseSpec {
    SparseSpec {
        dim: DIM,
        optimizer: Optimizer::Adagrad(Adagrad::default()),
        schedule: Schedule::Constant(1e-3),
        regularizer: None,
        initializer: Initializer::Uniform { low: -0.01, high: 0.01 },
        seed: 1,
        shards: DEFAULT_SHARDS,
        accessor: Default::default(),
        admission: Default::default(),
        capacity: None,
        non_finite: Default::default(),
        salted: false,
        storage: Default::default(),
    }
}

fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Keys in random order.
struct Random(u64);

impl Random {
    fn keys(&mut self, row_count: usize) -> Vec<u64> {
        let mut next = || {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        };
        (0..REQUEST).map(|_| key(next() % row_count as u64)).collect()
    }
}

fn fill(table: &SparseTable, row_count: usize) {
    let (mut scratch, mut rows) = (Scratch::new(), vec![0.0; REQUEST * DIM]);
    for start in (0..row_count).step_by(REQUEST) {
        let keys: Vec<u64> = (start..row_count.min(start + REQUEST)).map(|number| key(number as u64)).collect();
        table.pull(&keys, Missing::Create, &mut rows[..keys.len() * DIM], &mut scratch).expect("lengths agree");
    }
}

/// The shortest of several.
fn timed<T>(best: &mut f64, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = work();
    *best = best.min(began.elapsed().as_secs_f64());
    result
}

fn save(path: &Path, table: &Arc<SparseTable>, delta: bool) -> Manifest {
    let storage = Directory::new(path);
    let standing = delta.then(|| openfleet_table::checkpoint::read_manifest(&storage).expect("a save before"));
    let began = Instant::now();
    let cut = table.cut_since(standing.as_ref().map(Manifest::moment)).expect("one cut at a time");
    let cut_in = began.elapsed();
    let sparse = vec![SparseCut { name: "emb".into(), cut, without_state: false }];
    let (work, position) = (Work::default(), Default::default());
    let cuts = TableCuts { server: 0, buckets: 0..BUCKET_COUNT, sparse, dense: Vec::new(), work, position };
    let replaces = standing.map_or(Replaces::Anything, |standing| Replaces::Changes(standing.id));
    let commit = Commit { id: fresh_save_id(), replaces, ..Commit::default() };
    let manifest = save_alone(&storage, commit, cuts, true).expect("room on the disk");
    if delta {
        println!("the moment of a save of changes was marked in {:.1} ms", cut_in.as_secs_f64() * 1e3);
    }
    manifest
}

fn bytes_of(manifest: &Manifest) -> u64 {
    manifest.all_files().map(|(_, file)| file.bytes).sum()
}

fn load(path: &Path, manifest: &Manifest) -> SparseTable {
    let table = SparseTable::new(spec()).expect("a sound specification");
    let storage = Directory::new(path);
    let threads = Threads::of_this_machine();
    read_sparse(&storage, manifest, &manifest.sparse[0], 0..BUCKET_COUNT, &table, true, &threads)
        .expect("what was saved");
    table
}

fn write_plainly(path: &Path, bytes: u64) {
    let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut file = File::create(path).expect("a new file");
    for _ in 0..bytes.div_ceil(block.len() as u64) {
        file.write_all(&block).expect("room on the disk");
    }
    file.sync_all().expect("a disk that lasts");
}

/// Reads a file into newly allocated memory, as loading has to.
fn read_plainly(path: &Path) -> Vec<Vec<u8>> {
    let (mut file, mut blocks) = (File::open(path).expect("the file"), Vec::new());
    loop {
        let mut block = Vec::with_capacity(1 << 20);
        match (&mut file).take(1 << 20).read_to_end(&mut block) {
            Ok(1..) => blocks.push(block),
            _ => return blocks,
        }
    }
}

/// Reads a file into the same memory repeatedly: the speed of the disk.
fn read_and_forget(path: &Path) -> usize {
    let (mut file, mut block, mut total) = (File::open(path).expect("the file"), vec![0; 1 << 20], 0);
    while let Ok(read @ 1..) = file.read(&mut block) {
        total += read;
    }
    total
}

/// Asks the system to drop its cache of files.
fn forget() -> bool {
    fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}

/// How long pushes take during a save, and before it.
fn while_pushing(path: &Path, table: &Arc<SparseTable>, row_count: usize) {
    let stop = AtomicBool::new(false);
    let push = |during: Duration| {
        let (mut scratch, gradients) = (Scratch::new(), vec![1e-3; REQUEST * DIM]);
        let (mut random, mut pushed, mut longest) = (Random(9), 0u64, Duration::ZERO);
        let began = Instant::now();
        while began.elapsed() < during && !stop.load(Ordering::Relaxed) {
            let keys = random.keys(row_count);
            let one = Instant::now();
            table.push(&keys, &gradients, &mut scratch).expect("lengths agree");
            longest = longest.max(one.elapsed());
            pushed += REQUEST as u64;
        }
        (pushed as f64 / began.elapsed().as_secs_f64(), longest)
    };
    let (before, usual) = push(Duration::from_secs(5));
    let (seconds, (during, longest)) = std::thread::scope(|scope| {
        let saving = scope.spawn(|| {
            let began = Instant::now();
            save(path, table, false);
            stop.store(true, Ordering::Relaxed);
            began.elapsed().as_secs_f64()
        });
        let pushed = push(Duration::from_secs(600));
        (saving.join().expect("it is saved"), pushed)
    });
    stop.store(false, Ordering::Relaxed);
    println!(
        "while it is saved, {seconds:.1} s: {:.2} M rows/s pushed, {:.2} M before, so {:.2} s of pushing are lost; the longest \
         push of {REQUEST} rows took {:.1} ms, {:.1} ms before",
        during / 1e6,
        before / 1e6,
        seconds * (1.0 - during / before).max(0.0),
        longest.as_secs_f64() * 1e3,
        usual.as_secs_f64() * 1e3,
    );
    push(Duration::from_secs(1));
    let delta = save(path, table, true);
    let rows: u64 = delta.sparse[0].parts.iter().map(|part| part.rows).sum();
    println!("a save of what a second has changed has {:.2} M rows", rows as f64 / 1e6);
}
