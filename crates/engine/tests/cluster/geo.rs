//! Geo: workers train on local copies and send differences to the servers every k batches. The arithmetic, worked by hand, is
//! tested next to the communicator; here whole clusters train.

use std::sync::{Arc, Barrier};

use openfleet_core::strategy::{GeoScale, Mode, StrategyOptions};
use openfleet_engine::Minimize;
use openfleet_engine::{Executor, Scope};
use openfleet_table::{Adagrad, Adam, Lamb, Optimizer, RowwiseAdagrad, Sgd};
use parking_lot::Mutex;

use crate::harness::{Transport, alone, feed, model, on_cluster, together};

fn every(k_steps: i64) -> StrategyOptions {
    StrategyOptions { k_steps: Some(k_steps), ..StrategyOptions::for_mode(Mode::Geo) }
}

#[test]
fn geo_with_one_worker_equals_local_training() {
    let rules = [
        (Optimizer::Sgd(Sgd::default()), 0.1),
        (Optimizer::Adagrad(Adagrad::default()), 0.05),
        (Optimizer::RowwiseAdagrad(RowwiseAdagrad::default()), 0.05),
        (Optimizer::Adam(Adam::default()), 0.01),
        (Optimizer::Lamb(Lamb::default()), 0.01),
    ];
    for (optimizer, rate) in rules {
        let minimize = Minimize::new(optimizer, rate);
        let expected = alone(&minimize, 1, 50);
        for (k_steps, scale, servers, transport) in [
            (1, GeoScale::Average, 1, Transport::InProcess),
            (30, GeoScale::Average, 2, Transport::Tcp),
            (1, GeoScale::Mean, 1, Transport::InProcess),
            (1, GeoScale::Sum, 2, Transport::InProcess),
            (1, GeoScale::Mean, 3, Transport::Tcp),
            // The last batches are fewer than k: the flush sends them.
            (7, GeoScale::Mean, 2, Transport::InProcess),
            (1000, GeoScale::Mean, 2, Transport::Tcp),
        ] {
            let options = StrategyOptions { geo_scale: Some(scale), wire_bits: Some(32), ..every(k_steps) };
            let distance = together(&options, &minimize, (1, servers), transport, |_| 50).distance(&expected);
            assert!(
                distance < 1e-6,
                "{optimizer:?}, k = {k_steps}, {scale:?}, {servers} servers, {transport:?}: {distance}"
            );
        }
    }
}

/// The exact bytes are tested next to the communicator, where a test can wait for each exchange.
#[test]
fn traffic_falls_as_one_over_k() {
    const BATCHES: u64 = 200;
    let traffic = |k_steps: u64| {
        let travelled = Mutex::new((0, 0));
        let options = StrategyOptions { geo_dense_steps: Some(0), ..every(k_steps as i64) };
        let states = on_cluster(&options, (1, 2), Transport::InProcess, |cluster| {
            let model = model(&Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1));
            let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster.clone());
            executor.run_startup(&model.net.startup).unwrap();
            // The same batch again and again: after the first time every row is on the worker, and only exchanges use the
            // network.
            let mut step = || drop(executor.run(&model.net.main, feed(0, 0..1), &[]).unwrap());
            let bytes = || cluster.traffic().0 + cluster.traffic().1;
            step();
            let first = bytes();
            (1..BATCHES).for_each(|_| step());
            cluster.close().unwrap();
            *travelled.lock() = (first, bytes());
        });
        // Strictly every k batches, and once when the worker closes.
        for state in states {
            assert_eq!(state.status().positions, [(0, BATCHES), (1, BATCHES / k_steps + 1)]);
        }
        travelled.into_inner()
    };
    // Without a window: the traffic of the start, and of a flush of all rows.
    let (beginning, all) = traffic(BATCHES + 1);
    let exchange = all - beginning;
    for k_steps in [1, 10, 100] {
        let ((_, travelled), exchanges) = (traffic(k_steps), BATCHES / k_steps + 1);
        let most = beginning + exchanges * exchange;
        assert!(travelled <= most, "{exchanges} exchanges: {travelled} bytes, at most {most} expected");
    }
}

#[test]
fn two_workers_on_two_servers_learn_with_either_scale_and_transport() {
    for transport in [Transport::InProcess, Transport::Tcp] {
        let scales =
            [(GeoScale::Average, true), (GeoScale::Mean, true), (GeoScale::Sum, true), (GeoScale::Mean, false)];
        for (scale, flush_residual) in scales {
            let options =
                StrategyOptions { geo_scale: Some(scale), geo_flush_residual: Some(flush_residual), ..every(5) };
            let (losses, together) = (Mutex::new(Vec::new()), Barrier::new(2));
            on_cluster(&options, (2, 2), transport, |cluster| {
                let rank = u64::from(cluster.worker().rank);
                let model = model(&Minimize::new(Optimizer::Adagrad(Adagrad::default()), 0.05));
                let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster);
                executor.run_startup(&model.net.startup).unwrap();
                // Four batches per worker, overfitted.
                let mut pass = || {
                    // Otherwise one worker might be done before the other begins.
                    together.wait();
                    let losses = (0..4).map(|step| {
                        let feed = feed(step, rank..rank + 1);
                        executor.run(&model.net.main, feed, &[model.loss]).unwrap()[0].f32s().unwrap()[0]
                    });
                    losses.sum::<f32>() / 4.0
                };
                let first = pass();
                let last = (0..150).fold(first, |_, _| pass());
                losses.lock().push((first, last));
            });
            for (first, last) in losses.into_inner() {
                assert!(last < first * 0.6, "{transport:?}, {scale:?}: from {first} to {last}");
            }
        }
    }
}
