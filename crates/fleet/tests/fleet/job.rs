//! Two servers and two workers, four `Fleet`s in one process over loopback sockets: every mode trains and everything ends.

use std::sync::Arc;

use openfleet::fleet::Fleet;
use openfleet_core::Role;
use openfleet_core::strategy::Mode;
use openfleet_dist::Reduce;
use openfleet_engine::Scope;

use crate::{feed, free_endpoints, model, process};

const STEPS: u64 = 40;

/// The program of every process of a job with two workers. Returns a worker's first and last losses.
pub(crate) fn program(fleet: &Fleet, mode: Mode) -> Option<(f32, f32)> {
    let model = model(fleet, mode);
    if fleet.is_server() {
        fleet.init_server(None).unwrap();
        fleet.run_server().unwrap();
        return None;
    }
    fleet.init_worker().unwrap();
    let mut executor = fleet.executor(Arc::new(Scope::new())).unwrap();
    executor.run_startup(&model.net.startup).unwrap();
    let rank = fleet.worker_index().unwrap() as u64;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let fetched = executor.run(&model.net.main, feed(step, rank), &[model.loss]).unwrap();
        losses.push(fetched[0].f32s().unwrap()[0]);
    }
    // Workers agree on the tables, whichever comes first.
    fleet.barrier_worker().unwrap();
    let metrics = fleet.metrics();
    let (one, two) = (rank as f64 + 1.0, 10.0 - rank as f64);
    assert_eq!(metrics.sum(&[one, two]).unwrap(), [3.0, 19.0]);
    assert_eq!(metrics.max(&[one, two]).unwrap(), [2.0, 10.0]);
    assert_eq!(metrics.min(&[one, two]).unwrap(), [1.0, 9.0]);
    // 3 of 4 on one worker, 1 of 4 on the other.
    assert_eq!(metrics.acc(3 - 2 * rank, 4).unwrap(), 0.5);
    // Errors 1 and 2 over 2 rows each: (1 + 2) / 4.
    assert_eq!(metrics.mae(one, 2).unwrap(), 0.75);
    assert_eq!(metrics.mse(one, 2).unwrap(), 0.75);
    assert_eq!(metrics.rmse(one, 2).unwrap(), 0.75f64.sqrt());
    // Each worker alone has one class only and an AUC of 0.5; together all positive rows are ranked above.
    let (low, high) = ([4, 0], [0, 4]);
    let (positive, negative) = if rank == 0 { (high, [0, 0]) } else { ([0, 0], low) };
    assert_eq!(metrics.auc(&positive, &negative).unwrap(), 1.0);
    let mut total = [losses.len() as f64];
    fleet.all_reduce(Reduce::Sum, &mut total).unwrap();
    assert_eq!(total, [2.0 * STEPS as f64]);
    // The first worker shrinks for the job; no row is old enough to be removed.
    let shrunk = fleet.shrink(&Default::default()).unwrap();
    assert_eq!(shrunk.map(|shrunk| shrunk.total()), fleet.is_first_worker().then_some(0));
    fleet.stop_worker().unwrap();
    fleet.stop_worker().unwrap();
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    Some((mean(&losses[..5]), mean(&losses[STEPS as usize - 5..])))
}

fn whole_job(mode: Mode) {
    let servers = free_endpoints(2);
    let roles = [(Role::Server, 0), (Role::Server, 1), (Role::Worker, 0), (Role::Worker, 1)];
    let losses: Vec<Option<(f32, f32)>> = std::thread::scope(|scope| {
        let servers = &servers;
        let processes = roles.map(|(role, rank)| scope.spawn(move || program(&process(role, rank, 2, servers), mode)));
        processes.map(|process| process.join().unwrap()).into()
    });
    for (first, last) in losses.into_iter().flatten() {
        assert!(last < 0.8 * first, "{mode}: the loss went from {first} to {last}");
    }
}

#[test]
fn a_sync_job_trains_and_ends() {
    whole_job(Mode::Sync);
}

#[test]
fn a_half_async_job_trains_and_ends() {
    whole_job(Mode::HalfAsync);
}

#[test]
fn an_async_job_trains_and_ends() {
    whole_job(Mode::Async);
}

#[test]
fn a_hybrid_job_trains_and_ends() {
    whole_job(Mode::Hybrid);
}

#[test]
fn a_geo_job_trains_and_ends() {
    whole_job(Mode::Geo);
}

#[test]
fn workers_that_never_train_leave_and_the_servers_end() {
    let servers = free_endpoints(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let server = process(Role::Server, 0, 1, &servers);
            server.init_server(None).unwrap();
            server.run_server().unwrap();
        });
        let worker = process(Role::Worker, 0, 1, &servers);
        model(&worker, Mode::Async);
        worker.init_worker().unwrap();
        worker.stop_worker().unwrap();
    });
}

#[test]
fn a_server_ends_when_its_handle_says_so() {
    let server = process(Role::Server, 0, 1, &free_endpoints(1));
    server.init_server(None).unwrap();
    let handle = server.stop_handle();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| server.run_server());
        handle.stop();
        running.join().unwrap().unwrap();
    });
}
