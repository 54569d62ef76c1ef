//! GEO with numbers worked by hand: workers whose progress per batch is a given number, on servers in this process.

use std::collections::BTreeMap;

use openfleet_core::Key;
use openfleet_core::placement::PlacementRule;
use openfleet_core::strategy::{FloatWidth, GeoScale, Mode};
use openfleet_table::{Initializer, Optimizer, Schedule, Sgd};

use super::*;
use crate::client::Link;
use crate::communicator::Worker;
use crate::server::State;
use crate::stage::Lookup;

const DIM: usize = 2;
const FIRST: [f32; 3] = [1.0, 2.0, 3.0];

fn settings(k_steps: u64) -> GeoSettings {
    GeoSettings {
        k_steps,
        is_adaptive: false,
        dense_steps: 0,
        scale: GeoScale::Mean,
        flush_residual: true,
        send_queue_size: 4,
    }
}

fn averaging(k_steps: u64, dense_steps: u64) -> GeoSettings {
    GeoSettings { scale: GeoScale::Average, dense_steps, ..settings(k_steps) }
}

fn servers(count: usize) -> Vec<Arc<State>> {
    (0..count).map(|_| Arc::new(State::new())).collect()
}

/// One table whose rows begin at 0, and one dense parameter; plain SGD of rate 1, so a gradient of -1 is progress of 1.
fn worker(states: &[Arc<State>], rank: u32, count: u32, settings: GeoSettings) -> Geo {
    worker_of(states, rank, count, settings, FloatWidth::Bits32)
}

fn worker_of(states: &[Arc<State>], rank: u32, count: u32, settings: GeoSettings, width: FloatWidth) -> Geo {
    let (optimizer, schedule) = (Optimizer::Sgd(Sgd::default()), Schedule::Constant(1.0));
    let initializer = Initializer::Constant(0.0);
    let sparse = SparseSpec {
        dim: DIM,
        optimizer,
        schedule: schedule.clone(),
        regularizer: None,
        initializer,
        seed: 1,
        shards: 4,
        accessor: Default::default(),
        admission: Default::default(),
        capacity: None,
        non_finite: Default::default(),
        salted: false,
        storage: Default::default(),
    };
    let dense = DenseSpec { shape: vec![3], optimizer, schedule, regularizer: None, non_finite: Default::default() };
    let sparse = vec![("table".to_owned(), sparse)];
    let links = states.iter().map(|state| Link::in_process("server", state.clone(), rank)).collect();
    let first = [("w".to_owned(), dense.clone(), FIRST.to_vec())];
    let worker = Worker { rank, count, threads: 2 };
    let remote = Remote::create(links, worker, Mode::Geo, PlacementRule::default(), &sparse, &first).unwrap();
    Geo::new(remote.with_float_width(width), settings, sparse, vec![("w".to_owned(), dense)]).unwrap()
}

fn workers(states: &[Arc<State>], count: u32, settings: GeoSettings) -> Vec<Geo> {
    (0..count).map(|rank| worker(states, rank, count, settings)).collect()
}

fn stage(keys: &[Key]) -> SparseStage {
    let floats = keys.len() * DIM;
    let (rows, gradients) = (vec![0.0; floats], vec![0.0; floats]);
    let lookup = Lookup { table: 0, dim: DIM, trained: true, rows, gradients };
    let mut stage = SparseStage { lookups: vec![lookup], ..SparseStage::default() };
    stage.unique.start(keys.len());
    stage.unique.add(keys);
    stage
}

/// Trains a batch with these keys, whose rows and the dense parameter change by `progress`.
fn train(geo: &Geo, keys: &[Key], progress: f32) {
    let mut sparse = [stage(keys)];
    let gradient = vec![-progress; FIRST.len()];
    let mut dense = [DenseStage { gradient, values: vec![0.0; FIRST.len()], trained: true, ..DenseStage::default() }];
    geo.pull_sparse(&mut sparse, Missing::Create).unwrap();
    geo.pull_dense(&mut dense).unwrap();
    sparse[0].lookups[0].gradients.fill(-progress);
    let step = geo.next_step(0).unwrap();
    geo.push(WorkId::step(0, step.number), &mut sparse, &mut dense).unwrap();
}

/// A row as evaluation sees it.
fn seen(geo: &Geo, key: Key) -> f32 {
    let mut stages = [stage(&[key])];
    geo.pull_sparse(&mut stages, Missing::Initial).unwrap();
    stages[0].lookups[0].rows[0]
}

fn dense_seen(geo: &Geo) -> f32 {
    let mut stages = [DenseStage { values: vec![0.0; FIRST.len()], ..DenseStage::default() }];
    geo.pull_dense(&mut stages).unwrap();
    stages[0].values[0] - FIRST[0]
}

/// The first number of each row.
fn rows(states: &[Arc<State>]) -> BTreeMap<Key, f32> {
    let mut rows = BTreeMap::new();
    for state in states {
        state
            .each_row(0, |key, weights, _| {
                assert_eq!(weights[0], weights[1]);
                rows.insert(key, weights[0]);
            })
            .unwrap();
    }
    rows
}

/// How far each element of the dense parameter has moved.
fn dense_elements(states: &[Arc<State>]) -> Vec<f32> {
    let mut moved = Vec::new();
    for state in states {
        state.each_block(|_, values| moved.extend(values.iter().zip(FIRST).map(|(value, first)| value - first)));
    }
    assert_eq!(moved.len(), FIRST.len());
    moved
}

/// How far the dense parameter has moved, if all elements have moved alike.
fn dense(states: &[Arc<State>]) -> f32 {
    let moved = dense_elements(states);
    assert!(moved.iter().all(|&value| (value - moved[0]).abs() < 1e-3), "{moved:?}");
    moved[0]
}

/// Feature map, section 3.5, "Properties": constant drift 1 per worker and round.
#[test]
fn the_servers_move_per_round_as_the_golden_table_says() {
    let golden = [
        // N, round 1, round 5, steady state, gap between worker and server at the end
        (1, 1.00, 1.00, 1.00, 0.0),
        (2, 1.00, 1.94, 2.00, 1.0),
        (4, 1.00, 3.05, 4.00, 3.0),
        (10, 1.00, 4.10, 10.00, 9.0),
    ];
    const ROUNDS: usize = 120;
    for (count, first, fifth, steady, gap) in golden {
        let states = servers(1);
        let workers = workers(&states, count, settings(1));
        let mut moves = Vec::new();
        for _ in 0..ROUNDS {
            let before = (rows(&states).get(&7).copied().unwrap_or(0.0), dense(&states));
            for geo in &workers {
                train(geo, &[7], 1.0);
                geo.settle().unwrap();
            }
            moves.push([rows(&states)[&7] - before.0, dense(&states) - before.1]);
        }
        for (round, expected) in [(1, first), (5, fifth), (ROUNDS, steady)] {
            for moved in moves[round - 1] {
                assert!((moved - expected).abs() < 0.0051, "{count} workers, round {round}: {moved} for {expected}");
            }
        }
        // Its own part of the unsent progress, because it was the last to receive the others' changes.
        let last = &workers[count as usize - 1];
        assert!((seen(last, 7) - rows(&states)[&7] - gap).abs() < 0.01);
        assert!((dense_seen(last) - dense(&states) - gap).abs() < 0.01);
        workers.iter().for_each(|geo| geo.flush().unwrap());
        let sum = (count as usize * ROUNDS) as f32;
        assert!((rows(&states)[&7] - sum).abs() < 0.01 && (dense(&states) - sum).abs() < 0.01);
    }
}

/// Workers at 1 and 3 average to 2, and both continue from there; their rows are added up.
#[test]
fn averaged_parameters_continue_from_the_mean_of_the_workers() {
    let states = servers(2);
    let workers = workers(&states, 2, averaging(1, 0));
    for round in 1..=4 {
        for (geo, progress) in workers.iter().zip([1.0, 3.0]) {
            train(geo, &[7], progress);
            geo.settle().unwrap();
        }
        assert_eq!((rows(&states)[&7], dense(&states)), (4.0 * round as f32, 2.0 * round as f32));
        // The worker that exchanged last has what the servers have: nothing of its progress is left to be sent.
        assert_eq!((seen(&workers[1], 7), dense_seen(&workers[1])), (4.0 * round as f32, 2.0 * round as f32));
    }
    workers.iter().for_each(|geo| geo.flush().unwrap());
    assert_eq!((rows(&states)[&7], dense(&states)), (16.0, 8.0));
    assert!(workers.iter().all(|geo| (seen(geo, 7), dense_seen(geo)) == (16.0, 8.0)));
}

/// Between two windows, dense values and often used rows are exchanged; other rows wait for their window.
#[test]
fn dense_values_and_often_used_rows_are_exchanged_between_the_windows() {
    let states = servers(2);
    let geo = worker(&states, 0, 1, averaging(100, 5));
    for batch in 0..5 {
        train(&geo, &[1, 10 + batch % 2], 1.0);
    }
    geo.settle().unwrap();
    assert_eq!((geo.exchanges(), dense(&states)), (1, 5.0));
    assert_eq!(rows(&states), BTreeMap::from([(1, 5.0), (10, 0.0), (11, 0.0)]));
    geo.flush().unwrap();
    assert_eq!(rows(&states), BTreeMap::from([(1, 5.0), (10, 3.0), (11, 2.0)]));
}

/// Differences as 16 bits, and changes as 8 bits: close to exact while training, and exactly the servers' values after a flush.
#[test]
fn narrow_dense_values_stay_close_and_are_exact_after_a_flush() {
    let states = servers(2);
    let workers: Vec<Geo> =
        (0..2).map(|rank| worker_of(&states, rank, 2, averaging(1, 0), FloatWidth::Bits16)).collect();
    for round in 1..=50 {
        for (geo, progress) in workers.iter().zip([0.011, 0.033]) {
            train(geo, &[7], progress);
            geo.settle().unwrap();
        }
        // Each element of a push is rounded at random to one of its neighbours, which are at most 1 / 128 apart.
        let (expected, moved) = (0.022 * round as f32, dense_elements(&states));
        assert!(moved.iter().all(|value| (value - expected).abs() < 0.02 * expected), "{moved:?} for {expected}");
    }
    workers.iter().for_each(|geo| geo.flush().unwrap());
    workers.iter().for_each(|geo| geo.flush().unwrap());
    assert!((rows(&states)[&7] - 50.0 * 0.044).abs() < 1e-4, "rows keep their 32 bits");
    assert!(workers.iter().all(|geo| dense_seen(geo) == dense_seen(&workers[0])));
    assert!((dense_seen(&workers[0]) - dense_elements(&states)[0]).abs() < 1e-6);
}

/// Two workers train different parameters: a worker gets the other's progress, and does not undo it with its next flush.
#[test]
fn a_parameter_that_only_another_worker_trains_arrives_and_stays() {
    for width in [FloatWidth::Bits32, FloatWidth::Bits16] {
        let states = servers(1);
        let (optimizer, schedule) = (Optimizer::Sgd(Sgd::default()), Schedule::Constant(1.0));
        let spec = DenseSpec { shape: vec![2], optimizer, schedule, regularizer: None, non_finite: Default::default() };
        let first = ["a", "b"].map(|name| (name.to_owned(), spec.clone(), vec![0.0; 2]));
        let workers = [0, 1].map(|rank| {
            let (worker, links) =
                (Worker { rank, count: 2, threads: 1 }, vec![Link::in_process("server", states[0].clone(), rank)]);
            let remote = Remote::create(links, worker, Mode::Geo, PlacementRule::default(), &[], &first).unwrap();
            let dense = first.iter().map(|(name, spec, _)| (name.clone(), spec.clone())).collect();
            Geo::new(remote.with_float_width(width), averaging(1, 0), Vec::new(), dense).unwrap()
        });
        for step in 0..4 {
            for (table, geo) in workers.iter().enumerate() {
                let (values, gradient) = (vec![0.0; 2], vec![-1.0; 2]);
                let mut dense = [DenseStage { table, gradient, values, trained: true, ..DenseStage::default() }];
                geo.push(WorkId::step(0, step), &mut [], &mut dense).unwrap();
                geo.settle().unwrap();
            }
        }
        // Twice: the second time everybody has everything.
        (0..2).for_each(|_| workers.iter().for_each(|geo| geo.flush().unwrap()));
        states[0].each_block(|name, values| assert_eq!(values, [2.0; 2], "{name}, {width:?}"));
        for geo in &workers {
            let mut stages = [0, 1].map(|table| DenseStage { table, values: vec![0.0; 2], ..DenseStage::default() });
            geo.pull_dense(&mut stages).unwrap();
            assert!(stages.iter().all(|stage| stage.values == [2.0; 2]), "{width:?}: {stages:?}");
        }
    }
}

#[test]
fn after_a_flush_the_servers_have_the_progress_of_all_workers() {
    for (scale, server_count) in [(GeoScale::Mean, 1), (GeoScale::Mean, 3), (GeoScale::Sum, 2)] {
        let states = servers(server_count);
        let workers = workers(&states, 4, GeoSettings { scale, ..settings(3) });
        let (mut expected, mut expected_dense) = (BTreeMap::new(), 0.0);
        for batch in 0..10u64 {
            for (rank, geo) in workers.iter().enumerate() {
                // Some keys are shared by all workers, some are a worker's own, some are in one batch only.
                let keys = [batch % 2, 10 + rank as Key, 100 + batch * 4 + rank as Key];
                let progress = (rank + 1) as f32;
                train(geo, &keys, progress);
                keys.iter().for_each(|key| *expected.entry(*key).or_insert(0.0) += progress);
                expected_dense += progress;
            }
        }
        workers.iter().for_each(|geo| geo.flush().unwrap());
        // Integers divided by a power of two: nothing is lost to rounding.
        assert_eq!((rows(&states), dense(&states)), (expected.clone(), expected_dense));
        // After the next exchange every worker has the progress of all workers.
        workers.iter().for_each(|geo| geo.flush().unwrap());
        for geo in &workers {
            assert!(expected.iter().all(|(&key, &value)| seen(geo, key) == value));
            assert_eq!(dense_seen(geo), expected_dense);
        }
        assert_eq!((rows(&states), dense(&states)), (expected, expected_dense));
    }
}

/// Feature map, section 3.5, (b): "an id seen in one window only contributes 1/N".
#[test]
fn without_the_residual_a_row_of_one_window_contributes_its_share_only() {
    let states = servers(2);
    let workers = workers(&states, 4, GeoSettings { flush_residual: false, ..settings(2) });
    train(&workers[0], &[5], 1.0);
    train(&workers[0], &[6], 1.0);
    train(&workers[0], &[8], 1.0);
    workers[0].flush().unwrap();
    workers[0].flush().unwrap();
    assert_eq!(rows(&states), BTreeMap::from([(5, 0.25), (6, 0.25), (8, 0.25)]));
}

#[test]
fn a_row_changed_by_one_worker_reaches_another_exactly_once() {
    let states = servers(1);
    let [a, b] = [0, 1].map(|rank| worker(&states, rank, 2, GeoSettings { scale: GeoScale::Sum, ..settings(1) }));
    let exchange = |geo: &Geo| {
        let before = geo.traffic().1;
        geo.flush().unwrap();
        geo.traffic().1 - before
    };
    train(&b, &[1], 0.0);
    b.settle().unwrap();
    train(&a, &[1], 3.0);
    a.settle().unwrap();
    let (with_row, after) = (exchange(&b), exchange(&b));
    assert_eq!((seen(&b, 1), dense_seen(&b)), (3.0, 3.0));
    assert_eq!(with_row - after, (size_of::<Key>() + DIM * size_of::<f32>()) as u64, "the row is sent once");
    exchange(&b);
    assert_eq!((seen(&b, 1), seen(&a, 1), rows(&states)[&1]), (3.0, 3.0, 3.0));

    // A row that is first used after the change contains it, and is not sent again.
    train(&a, &[2], 4.0);
    a.settle().unwrap();
    train(&b, &[2], 0.5);
    b.settle().unwrap();
    assert_eq!(exchange(&b), after);
    assert_eq!((seen(&b, 2), rows(&states)[&2]), (4.5, 4.5));

    // A row that is sent but has no local copy is pulled when it is first used: with every change, each once.
    train(&a, &[9], 1.0);
    a.settle().unwrap();
    exchange(&b);
    train(&a, &[9], 1.0);
    a.settle().unwrap();
    train(&b, &[9], 0.0);
    b.settle().unwrap();
    exchange(&b);
    assert_eq!((seen(&b, 9), rows(&states)[&9]), (2.0, 2.0));
}

#[test]
fn an_exchange_comes_strictly_every_k_batches_of_all_threads_and_with_a_flush() {
    let states = servers(2);
    let geo = worker(&states, 0, 1, GeoSettings { send_queue_size: 2, ..settings(10) });
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let geo = &geo;
            scope.spawn(move || (0..26).for_each(|batch| train(geo, &[batch % 5, 10 + thread], 1.0)));
        }
    });
    geo.settle().unwrap();
    assert_eq!(geo.exchanges(), 10);
    assert!(geo.most_queued() <= 2);
    geo.flush().unwrap();
    assert_eq!((geo.exchanges(), dense(&states)), (11, 104.0));
    // A flush starts a new window.
    (0..9).for_each(|_| train(&geo, &[1], 1.0));
    geo.settle().unwrap();
    assert_eq!(geo.exchanges(), 11);
    train(&geo, &[1], 1.0);
    geo.settle().unwrap();
    assert_eq!(geo.exchanges(), 12);
    let positions = [0, 1].map(|server: usize| states[server].status().positions);
    assert_eq!(positions.map(|p| p.into_iter().find(|(stream, _)| *stream == 2)), [Some((2, 12)); 2]);
}

#[test]
fn traffic_falls_as_one_over_k_to_the_byte() {
    const BATCHES: u64 = 1000;
    let bytes = |geo: &Geo| geo.traffic().0 + geo.traffic().1;
    let travelled = [1, 10, 100].map(|k_steps| {
        let geo = worker(&servers(2), 0, 1, settings(k_steps));
        let keys: Vec<Key> = (0..50).collect();
        // The first window pulls the rows; after that only exchanges are sent.
        let train_batches = |batches: u64| {
            for _ in 0..batches {
                train(&geo, &keys, 1.0);
                geo.settle().unwrap();
            }
        };
        train_batches(k_steps);
        let (before, exchanges) = (bytes(&geo), geo.exchanges());
        train_batches(BATCHES);
        assert_eq!(geo.exchanges() - exchanges, BATCHES / k_steps);
        bytes(&geo) - before
    });
    assert_eq!([travelled[0], travelled[0]], [travelled[1] * 10, travelled[2] * 100]);
    // The content of a window: its rows with their keys and the dense parameter in both directions, and little else.
    let content = 50 * (size_of::<Key>() + DIM * size_of::<f32>()) + 2 * FIRST.len() * size_of::<f32>();
    assert!((travelled[0] / BATCHES) as usize <= content + 256, "{travelled:?} for {content} per window");
}

#[test]
fn threads_and_workers_that_train_the_same_rows_at_once_lose_nothing() {
    let states = servers(2);
    let workers = workers(&states, 2, settings(2));
    std::thread::scope(|scope| {
        for geo in &workers {
            for _ in 0..3 {
                scope.spawn(move || {
                    for batch in 0..200u64 {
                        let keys = |batch: u64| (0..8).map(|i| (batch / 4 + i) % 60).collect::<Vec<Key>>();
                        assert!(geo.begin_pull(&[stage(&keys((batch + 1).min(199)))]).unwrap().is_none());
                        train(geo, &keys(batch), 1.0);
                    }
                });
            }
        }
    });
    workers.iter().for_each(|geo| geo.flush().unwrap());
    let mut expected: BTreeMap<Key, f32> = BTreeMap::new();
    for batch in 0..200u64 {
        (0..8).for_each(|i| *expected.entry((batch / 4 + i) % 60).or_default() += 6.0);
    }
    // The halves never sum up exactly, and the smallest are rounded away: compare with a tolerance.
    let got = rows(&states);
    assert_eq!(got.len(), expected.len());
    for (key, value) in &expected {
        assert!((got[key] - value).abs() < 0.01, "row {key}: {} for {value}", got[key]);
    }
    assert!((dense(&states) - 1200.0).abs() < 0.1);
}

#[test]
fn rows_requested_ahead_become_copies_for_every_thread_and_miss_no_change() {
    let states = servers(2);
    let [a, b] = [0, 1].map(|rank| worker(&states, rank, 2, GeoSettings { scale: GeoScale::Sum, ..settings(1) }));
    a.begin_pull(&[stage(&[1, 2, 3])]).unwrap();
    a.begin_pull(&[stage(&[3, 4])]).unwrap();
    train(&b, &[2, 3], 10.0);
    b.settle().unwrap();
    // The exchange of this batch brings the changes of rows whose replies were not stored yet.
    train(&a, &[7], 1.0);
    a.settle().unwrap();
    // A thread that did not request the rows needs them first.
    std::thread::scope(|scope| scope.spawn(|| train(&a, &[2, 4], 1.0)).join().unwrap());
    a.settle().unwrap();
    assert_eq!((seen(&a, 2), seen(&a, 4)), (11.0, 1.0));
    train(&a, &[1, 3], 1.0);
    a.flush().unwrap();
    assert_eq!(seen(&a, 3), 11.0);
    assert_eq!(rows(&states), BTreeMap::from([(1, 1.0), (2, 11.0), (3, 11.0), (4, 1.0), (7, 1.0)]));
}

#[test]
fn evaluation_reads_copies_where_there_are_any_and_keeps_nothing() {
    let states = servers(1);
    let [a, b] = [0, 1].map(|rank| worker(&states, rank, 2, GeoSettings { scale: GeoScale::Sum, ..settings(1) }));
    train(&a, &[1], 1.0);
    a.settle().unwrap();
    assert_eq!((seen(&b, 1), seen(&b, 99)), (1.0, 0.0));
    train(&a, &[1], 1.0);
    a.settle().unwrap();
    assert_eq!(seen(&b, 1), 2.0, "a row that was only read is pulled again");
    assert_eq!(rows(&states), BTreeMap::from([(1, 2.0)]));
    let long = worker(&states, 1, 2, settings(100));
    train(&long, &[1], 5.0);
    assert_eq!((seen(&long, 1), rows(&states)[&1]), (7.0, 2.0));
}

#[test]
fn the_last_thread_of_a_pass_flushes() {
    let states = servers(1);
    let geo = worker(&states, 0, 1, settings(100));
    [0, 1].into_iter().for_each(|stream| geo.begin(stream).unwrap());
    train(&geo, &[1], 1.0);
    geo.finish(1).unwrap();
    assert_eq!(geo.exchanges(), 0);
    train(&geo, &[1], 1.0);
    geo.finish(0).unwrap();
    assert_eq!((geo.exchanges(), rows(&states)[&1]), (1, 2.0));
}

#[test]
fn a_difference_that_is_not_finite_stays_with_the_worker() {
    let states = servers(1);
    let geo = worker(&states, 0, 1, settings(1));
    train(&geo, &[1], 1.0);
    train(&geo, &[2], 3e38);
    train(&geo, &[2], 3e38);
    train(&geo, &[1], 1.0);
    geo.flush().unwrap();
    let rows = rows(&states);
    assert_eq!(rows[&1], 2.0);
    assert!(rows[&2].is_finite() && dense(&states).is_finite());
}
