//! Saving while workers push: the counter table of the checkpoint matches exactly the applied work in its manifest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openfleet_core::strategy::{Mode, StrategyOptions};
use openfleet_dist::communicator::Worker;
use openfleet_dist::handshake::Secret;
use openfleet_dist::request::cut::Cut;
use openfleet_dist::{Cluster, SaveOptions, ServerConfig};
use openfleet_table::checkpoint::{Memory, Storage};
use openfleet_testkit::network::{Faults, Network};

use crate::harness::{Thread, cluster, content, counters, servers};

const WORKERS: u32 = 2;

/// The ids of one sample.
fn sample(rank: u32, step: u64) -> Vec<u64> {
    (0..4).map(|at| (u64::from(rank) * 31 + step * 7 + at * at * 13) % 90).collect()
}

/// The counts that a checkpoint should have, according to its applied work.
fn check(memory: &Memory, mode: Mode) -> u64 {
    let (manifest, content) = content(memory).unwrap();
    let positions = manifest.work.positions();
    // Hybrid's sparse pushes have their own streams, numbered after the others.
    let first = if mode == Mode::Hybrid { WORKERS } else { 0 };
    let (mut expected, mut samples) = (BTreeMap::new(), 0);
    for rank in 0..WORKERS {
        for step in 0..positions.get(&(first + rank)).copied().unwrap_or(0) {
            sample(rank, step).iter().for_each(|id| *expected.entry(*id).or_insert(0.0f32) += 1.0);
            samples += 1;
        }
    }
    let mut got: BTreeMap<u64, f32> =
        content.rows.iter().map(|((_, key), row)| (*key, f32::from_bits(row.1[0]))).collect();
    // Rows that were pulled but not pushed yet.
    got.retain(|_, count| *count != 0.0);
    assert_eq!(got, expected, "{mode}");
    samples
}

/// Over a bad network, so that the servers' states differ unless they are synchronized.
fn save_while_pushing(mode: Mode, seed: u64) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    let memory = Memory::new();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let states = servers(3, &storage);
    let config = ServerConfig { secret: Secret::new("a test's secret"), ..ServerConfig::default() };
    let network = Network::new(seed, Faults::BAD, config, &states);
    let cluster = |rank: u32| {
        let links = network.links(runtime.handle(), &network.client(rank, 1));
        let mut options = StrategyOptions::for_mode(mode);
        if mode == Mode::Async {
            options.max_merge_var_num = Some(3);
            options.send_queue_size = Some(4);
            options.send_wait_times = Some(0);
        }
        let strategy = openfleet_core::strategy::Strategy::resolve(&options).unwrap();
        Cluster::new(links, Worker { rank, count: WORKERS, threads: 1 }, strategy)
    };
    let (tables, done) = (counters(), AtomicBool::new(false));
    let steps = AtomicU64::new(0);
    let clusters: Vec<Cluster> = (0..WORKERS).map(cluster).collect();
    // Sync divides by the workers that took part, so each pushes as much more.
    let gradient = if mode == Mode::Sync { -(WORKERS as f32) } else { -1.0 };
    std::thread::scope(|scope| {
        for (rank, cluster) in clusters.iter().enumerate() {
            let (tables, done, steps) = (&tables, &done, &steps);
            scope.spawn(move || {
                let communicator = cluster.communicator(&tables.0, &tables.1).unwrap();
                let mut thread = Thread::new(tables);
                communicator.begin(0).unwrap();
                // If workers wait for each other, the one that ends first must not reduce the divisor of the other.
                let most = if mode == Mode::Sync { 600 } else { u64::MAX };
                for step in 0..most {
                    if mode != Mode::Sync && done.load(Ordering::SeqCst) {
                        break;
                    }
                    thread.step(communicator.as_ref(), &sample(rank as u32, step), gradient);
                    steps.fetch_add(1, Ordering::SeqCst);
                }
                communicator.finish(0).unwrap();
            });
        }
        while steps.load(Ordering::SeqCst) < 20 {
            std::thread::yield_now();
        }
        let mut checkpoints = Vec::new();
        for number in 0..6 {
            // Full saves, and deltas since them and since each other.
            let options = SaveOptions { delta: number % 3 > 0, ..SaveOptions::default() };
            let saved = clusters[0].save("anywhere", &options);
            let copy = Memory::new();
            memory.files().into_iter().for_each(|(path, bytes)| copy.put(&path, bytes));
            checkpoints.push((saved, copy));
        }
        // Before anything is compared: a failing test must not leave its workers training.
        done.store(true, Ordering::SeqCst);
        let mut before = 0;
        for (number, (saved, checkpoint)) in checkpoints.into_iter().enumerate() {
            assert_eq!(saved.unwrap().layers.len(), number % 3);
            let count = check(&checkpoint, mode);
            assert!(count >= before, "{mode}: work is never undone");
            before = count;
        }
        assert!(before > 20, "{mode}: nothing was shown");
    });
    clusters[0].save("anywhere", &SaveOptions::default()).unwrap();
    check(&memory, mode);
    clusters.iter().for_each(|cluster| cluster.close().unwrap());
}

#[test]
fn a_checkpoint_counts_what_its_manifest_says_in_sync_mode() {
    (0..3).for_each(|seed| save_while_pushing(Mode::Sync, seed));
}

#[test]
fn a_checkpoint_counts_what_its_manifest_says_in_half_async_mode() {
    (0..3).for_each(|seed| save_while_pushing(Mode::HalfAsync, seed));
}

#[test]
fn a_checkpoint_counts_what_its_manifest_says_in_async_mode() {
    (0..3).for_each(|seed| save_while_pushing(Mode::Async, seed));
}

#[test]
fn a_checkpoint_counts_what_its_manifest_says_in_hybrid_mode() {
    (0..3).for_each(|seed| save_while_pushing(Mode::Hybrid, seed));
}

/// A save in geo mode contains the unsent progress of the worker that saves.
#[test]
fn a_save_in_geo_mode_contains_the_workers_unsent_progress() {
    let (memory, tables) = (Memory::new(), counters());
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let worker = cluster(&servers(2, &storage), 0, 1, Mode::Geo);
    let communicator = worker.communicator(&tables.0, &tables.1).unwrap();
    let mut thread = Thread::new(&tables);
    communicator.begin(0).unwrap();
    let mut expected = BTreeMap::new();
    for step in 0..7 {
        // Far fewer than between two exchanges.
        thread.step(communicator.as_ref(), &sample(0, step), -1.0);
        sample(0, step).iter().for_each(|id| *expected.entry(*id).or_insert(0.0f32) += 1.0);
    }
    worker.save("anywhere", &SaveOptions::default()).unwrap();
    let (manifest, content) = content(&memory).unwrap();
    let got: BTreeMap<u64, f32> = content.rows.iter().map(|((_, key), row)| (*key, f32::from_bits(row.1[0]))).collect();
    assert_eq!((manifest.mode.as_str(), got), ("geo", expected));
    communicator.finish(0).unwrap();
}

/// The worker that saves dies in the middle of it: pushes that were held back are applied after a timeout.
#[test]
fn pushes_continue_when_the_worker_that_saves_is_gone() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (memory, tables) = (Memory::new(), counters());
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let states = servers(2, &storage);
    let silence = Duration::from_millis(100);
    let config = ServerConfig { secret: Secret::new("a test's secret"), silence, ..ServerConfig::default() };
    let network = Network::new(1, Faults::NONE, config, &states);
    let links = |rank| network.links(runtime.handle(), &network.client(rank, 1));
    let strategy = crate::harness::strategy(Mode::Async);
    let worker = Cluster::new(links(1), Worker { rank: 1, count: WORKERS, threads: 1 }, strategy);
    let communicator = worker.communicator(&tables.0, &tables.1).unwrap();
    let mut thread = Thread::new(&tables);
    communicator.begin(0).unwrap();
    thread.step(communicator.as_ref(), &sample(1, 0), -1.0);
    for link in links(0) {
        link.send(&Cut::Prepare { id: "0123456789abcdef.0".into() }).unwrap().wait().unwrap();
    }
    // It waits until both of them are applied.
    thread.step(communicator.as_ref(), &sample(1, 1), -1.0);
    communicator.finish(0).unwrap();
    worker.save("anywhere", &SaveOptions::default()).unwrap();
    assert_eq!(content(&memory).unwrap().0.work.positions(), [(1, 2)].into());
}
