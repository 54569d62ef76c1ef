//! A job that is saved, ends, and goes on with another number of servers.

use std::sync::Arc;

use openfleet_core::Role;
use openfleet_core::strategy::Mode;
use openfleet_dist::storage::Directory;
use openfleet_engine::Scope;
use openfleet_table::checkpoint::{read_dense, read_manifest};

use crate::{feed, free_endpoints, model, process};

/// Two workers on some servers train these steps in sync mode and save; the step that the checkpoint says.
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
        (read_dense(&storage, &manifest).unwrap(), manifest.sparse[0].rows, manifest.work)
    };
    assert_eq!(values(&whole), values(&straight), "to the bit");
}
