//! Geo: copies on the workers, differences to the servers every k batches. The arithmetic, worked by hand, is tested beside
//! the communicator; here whole clusters train.

use std::sync::Arc;

use openfleet_core::strategy::{GeoScale, Mode, StrategyOptions};
use openfleet_engine::{Executor, Scope};
use openfleet_table::{Adagrad, Adam, Optimizer, Sgd};
use parking_lot::Mutex;

use crate::harness::{Road, alone, feed, model, on_cluster, together};

fn every(k_steps: i64) -> StrategyOptions {
    StrategyOptions { k_steps: Some(k_steps), ..StrategyOptions::for_mode(Mode::Geo) }
}

#[test]
fn geo_with_one_worker_equals_local_training() {
    let rules = [
        (Optimizer::Sgd(Sgd::default()), 0.1),
        (Optimizer::Adagrad(Adagrad::default()), 0.05),
        (Optimizer::Adam(Adam::default()), 0.01),
    ];
    for (optimizer, rate) in rules {
        let expected = alone(optimizer, rate, 1, 50);
        for (k_steps, scale, servers, road) in [
            (1, GeoScale::Mean, 1, Road::InProcess),
            (1, GeoScale::Sum, 2, Road::InProcess),
            (1, GeoScale::Mean, 3, Road::Tcp),
            // The last batches are fewer than k: the flush brings them.
            (7, GeoScale::Mean, 2, Road::InProcess),
            (1000, GeoScale::Mean, 2, Road::Tcp),
        ] {
            let options = StrategyOptions { geo_scale: Some(scale), ..every(k_steps) };
            let distance = together(&options, optimizer, rate, (1, servers), road, |_| 50).distance(&expected);
            assert!(
                distance < 1e-6,
                "{optimizer:?}, k = {k_steps}, {scale:?}, {servers} servers, {road:?}: {distance}"
            );
        }
    }
}

#[test]
fn traffic_falls_as_one_over_k() {
    const BATCHES: u64 = 200;
    let first_batches = Mutex::new(Vec::new());
    let bytes = [1, 10, 100].map(|k_steps| {
        let steady = Mutex::new(0);
        let states = on_cluster(&every(k_steps), (1, 2), Road::InProcess, |cluster| {
            let model = model(Optimizer::Sgd(Sgd::default()), 0.1);
            let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster.clone());
            executor.run_startup(&model.net.startup).unwrap();
            // One batch again and again: after its first time every row is here, and only exchanges travel.
            let mut step = || drop(executor.run(&model.net.main, feed(0, 0..1), &[]).unwrap());
            step();
            let before = cluster.traffic();
            first_batches.lock().push(before);
            (1..BATCHES).for_each(|_| step());
            cluster.close().unwrap();
            let after = cluster.traffic();
            *steady.lock() = after.0 - before.0 + after.1 - before.1;
        });
        // Strictly every k batches, and once when the worker closes.
        for state in states {
            assert_eq!(state.status().positions, [(0, BATCHES / k_steps as u64 + 1)]);
        }
        steady.into_inner()
    });
    let [one, ten, hundred] = bytes.map(|bytes| bytes as f64);
    for (more, fewer) in [(one, ten), (ten, hundred)] {
        let ratio = more / fewer;
        // 201 to 21 to 3 exchanges.
        assert!((6.0..11.0).contains(&ratio), "{bytes:?}");
    }
}

#[test]
fn two_workers_on_two_servers_learn_with_either_scale_over_either_road() {
    for road in [Road::InProcess, Road::Tcp] {
        for (scale, flush_residual) in [(GeoScale::Mean, true), (GeoScale::Sum, true), (GeoScale::Mean, false)] {
            let options =
                StrategyOptions { geo_scale: Some(scale), geo_flush_residual: Some(flush_residual), ..every(5) };
            let losses = Mutex::new(Vec::new());
            on_cluster(&options, (2, 2), road, |cluster| {
                let rank = u64::from(cluster.worker().rank);
                let model = model(Optimizer::Adagrad(Adagrad::default()), 0.05);
                let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster);
                executor.run_startup(&model.net.startup).unwrap();
                // Four batches a worker, learnt by heart.
                let mut pass = || {
                    let losses = (0..4).map(|step| {
                        let feed = feed(step, rank..rank + 1);
                        executor.run(&model.net.main, feed, &[model.loss]).unwrap()[0].f32s().unwrap()[0]
                    });
                    losses.sum::<f32>() / 4.0
                };
                let first = pass();
                (0..150).for_each(|_| drop(pass()));
                losses.lock().push((first, pass()));
            });
            for (first, last) in losses.into_inner() {
                assert!(last < first * 0.6, "{road:?}, {scale:?}: from {first} to {last}");
            }
        }
    }
}
