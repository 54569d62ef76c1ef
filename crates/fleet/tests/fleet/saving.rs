//! A job that is saved, ends, and resumes with another number of servers.

use std::sync::Arc;

use openfleet::fleet::Fleet;
use openfleet_core::Role;
use openfleet_core::strategy::Mode;
use openfleet_dist::storage::Directory;
use openfleet_engine::op::{BatchNormOptions, EmbeddingOptions};
use openfleet_engine::{Executor, Feed, Minimize, Net, Scope, Var};
use openfleet_table::checkpoint::{StateElements, read_dense, read_manifest, read_states};
use openfleet_table::{Optimizer, Sgd};

use crate::{feed, free_endpoints, model, options, process};

/// Two workers on some servers train these steps in sync mode and save; returns the step of the checkpoint.
fn train(servers: usize, resume: Option<&str>, steps: std::ops::Range<u64>, save_to: &str) -> u64 {
    let endpoints = free_endpoints(servers);
    let mut saved = 0;
    std::thread::scope(|scope| {
        for rank in 0..servers {
            let endpoints = &endpoints;
            scope.spawn(move || {
                let fleet = process(Role::Server, rank as i64, 2, endpoints);
                fleet.init_server(resume).unwrap();
                fleet.run_server().unwrap();
            });
        }
        let workers: Vec<_> = (0..2u64)
            .map(|rank| {
                let (endpoints, steps) = (&endpoints, steps.clone());
                scope.spawn(move || {
                    let fleet = process(Role::Worker, rank as i64, 2, endpoints);
                    let model = model(&fleet, Mode::Sync);
                    fleet.init_worker().unwrap();
                    let mut executor = fleet.executor(Arc::new(Scope::new())).unwrap();
                    executor.run_startup(&model.net.startup).unwrap();
                    for step in steps {
                        executor.run(&model.net.main, feed(step, rank), &[model.loss]).unwrap();
                    }
                    fleet.barrier_worker().unwrap();
                    let manifest = fleet.save_persistables(&mut executor, &model.net.main, save_to).unwrap();
                    assert_eq!(manifest.is_some(), rank == 0, "the first worker saves for all");
                    fleet.stop_worker().unwrap();
                    manifest.map_or(0, |manifest| manifest.step)
                })
            })
            .collect();
        saved = workers.into_iter().map(|worker| worker.join().unwrap()).max().unwrap();
    });
    saved
}

#[test]
fn a_job_that_ended_goes_on_from_its_checkpoint_with_other_servers() {
    let directory = tempfile::tempdir().unwrap();
    let [half, whole, straight] =
        ["half", "whole", "straight"].map(|name| directory.path().join(name).to_str().unwrap().to_owned());
    assert_eq!(train(2, None, 0..3, &half), 3);
    assert_eq!(train(3, Some(&half), 3..6, &whole), 6);
    assert_eq!(train(1, None, 0..6, &straight), 6);
    let values = |path: &str| {
        let storage = Directory::new(path);
        let manifest = read_manifest(&storage).unwrap();
        ((read_dense(&storage, &manifest).unwrap(), manifest.sparse[0].rows), manifest.work.positions())
    };
    let ((whole, own_steps), (straight, _)) = (values(&whole), values(&straight));
    assert_eq!(whole, straight, "to the bit");
    assert_eq!(own_steps, [(0, 3), (1, 3)].into(), "another run counts its own steps");
}

/// A model with batch statistics, on a server and two workers; `work` is what a worker does.
fn with_statistics(resume: Option<&str>, work: impl Fn(u64, &Fleet, &mut Executor, &Net, Var) + Sync) {
    let endpoints = free_endpoints(1);
    std::thread::scope(|scope| {
        let (endpoints, work) = (&endpoints, &work);
        scope.spawn(move || {
            let fleet = process(Role::Server, 0, 2, endpoints);
            fleet.init_server(resume).unwrap();
            fleet.run_server().unwrap();
        });
        for rank in 0..2u64 {
            scope.spawn(move || {
                let fleet = process(Role::Worker, rank as i64, 2, endpoints);
                let mut net = Net::with_seed(5);
                let slot = net.slot("ids").unwrap();
                let rows = net.embedding(slot, 3, &EmbeddingOptions::default()).unwrap();
                let names = BatchNormOptions { moving_mean_name: Some("mean".into()), ..BatchNormOptions::default() };
                let x = net.batch_norm(rows, &names).unwrap();
                let loss = net.mean(x).unwrap();
                let minimize = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.5);
                let optimizer = fleet.distributed_optimizer(minimize, &options(Mode::Sync)).unwrap();
                optimizer.minimize(&mut net.main, loss).unwrap();
                fleet.init_worker().unwrap();
                let mut executor = fleet.executor(Arc::new(Scope::new())).unwrap();
                executor.run_startup(&net.startup).unwrap();
                work(rank, &fleet, &mut executor, &net, loss);
                fleet.stop_worker().unwrap();
            });
        }
    });
}

#[test]
fn every_worker_goes_on_with_the_running_statistics_of_the_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model").to_str().unwrap().to_owned();
    let ids = |step: u64| {
        let ids: Vec<Vec<u64>> = (0..8).map(|row| vec![(step * 5 + row) % 11]).collect();
        Feed::new().slot("ids", &ids.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap()
    };
    with_statistics(None, |rank, fleet, executor, net, loss| {
        for step in 0..3 {
            executor.run(&net.main, ids(step + rank), &[loss]).unwrap();
        }
        fleet.barrier_worker().unwrap();
        fleet.save_persistables(executor, &net.main, &path).unwrap();
    });
    let storage = Directory::new(&path);
    let saved = read_states(&storage, &read_manifest(&storage).unwrap()).unwrap();
    let StateElements::F32(saved) = &saved["mean"].elements else { panic!("{saved:?}") };
    assert!(saved.iter().any(|mean| *mean != 0.0));
    with_statistics(Some(&path), |_, _, executor, net, loss| {
        executor.run(&net.main.clone_for_test(), ids(0), &[loss]).unwrap();
        assert_eq!(executor.scope().get("mean").unwrap().f32s().unwrap(), saved.as_slice());
    });
}
