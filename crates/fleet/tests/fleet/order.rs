//! Calls in the wrong order or role: each error names the missing call, or the role it is for.

use std::sync::Arc;

use openfleet::fleet::{Fleet, ProcessContext};
use openfleet::{Error, Result};
use openfleet_core::Role;
use openfleet_core::error::report;
use openfleet_core::strategy::{Mode, StrategyOptions};
use openfleet_dist::Reduce;
use openfleet_engine::{Minimize, Scope};
use openfleet_table::{Optimizer, Sgd};

use crate::{model, process};

/// A call by name.
fn call(fleet: &Fleet, name: &str) -> Result<()> {
    match name {
        "distributed_optimizer" => fleet
            .distributed_optimizer(
                Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1),
                &StrategyOptions { launch_barrier: Some(false), ..StrategyOptions::distributed_strategy() },
            )
            .map(drop),
        "init_server" => fleet.init_server(None),
        "init_server from a checkpoint" => fleet.init_server(Some("model")),
        "run_server" => fleet.run_server(),
        "stop" => {
            fleet.stop_handle().stop();
            Ok(())
        }
        "init_worker" => fleet.init_worker(),
        "executor" => fleet.executor(Arc::new(Scope::new())).map(drop),
        "cluster" => fleet.cluster().map(drop),
        "barrier_worker" => fleet.barrier_worker(),
        "all_reduce" => fleet.all_reduce(Reduce::Sum, &mut [0.0]),
        "metrics.sum" => fleet.metrics().sum(&[0.0]).map(drop),
        "shrink" => fleet.shrink(&Default::default()).map(drop),
        "split_files" => fleet.split_files(&["a"]).map(drop),
        "worker_index" => fleet.worker_index().map(drop),
        "server_index" => fleet.server_index().map(drop),
        "stop_worker" => fleet.stop_worker(),
        other => unreachable!("no such call: {other}"),
    }
}

/// Makes all calls but the last, which must fail; returns its message.
fn last_of(fleet: &Fleet, calls: &str) -> String {
    let calls: Vec<&str> = calls.split(", ").collect();
    let (last, before) = calls.split_last().unwrap();
    before.iter().for_each(|name| call(fleet, name).unwrap());
    report(&call(fleet, last).unwrap_err())
}

#[test]
fn each_call_out_of_place_says_what_is_missing() {
    let server = || process(Role::Server, 0, 2, &crate::free_endpoints(1));
    // No server listens there; without the launch barrier the worker does not wait.
    let worker = || process(Role::Worker, 1, 2, &["127.0.0.1:1".to_owned()]);
    let alone = || Fleet::init_in(None, ProcessContext::quiet([])).unwrap();
    let early =
        |call: &str, missing: &str| format!("`{call}` was called before `{missing}`\n\nhint: call `{missing}` first");
    let late =
        |call: &str, after: &str| format!("`{call}` was called after `{after}`\n\nhint: call it before `{after}`");
    let role = |call: &str, role: &str, got: &str| {
        format!("`{call}` is for a {role}, this is {got}\n\nhint: call it where `is_{role}()` is true")
    };
    let (a_server, a_worker) = ("server 0 of 1 (2 workers)", "worker 1 of 2 (1 server)");
    let rows = [
        // A server.
        (server(), "run_server", early("run_server", "init_server")),
        (server(), "init_server, stop, run_server, run_server", late("run_server", "run_server")),
        (server(), "init_server, stop, run_server, init_server", late("init_server", "run_server")),
        (server(), "init_server, stop, run_server, distributed_optimizer", late("distributed_optimizer", "run_server")),
        // A server does not do a worker's work.
        (server(), "init_worker", role("init_worker", "worker", a_server)),
        (server(), "stop_worker", role("stop_worker", "worker", a_server)),
        (server(), "barrier_worker", role("barrier_worker", "worker", a_server)),
        (server(), "all_reduce", role("all_reduce", "worker", a_server)),
        (server(), "shrink", role("shrink", "worker", a_server)),
        (server(), "executor", role("executor", "worker", a_server)),
        (server(), "split_files", role("split_files", "worker", a_server)),
        (server(), "worker_index", role("worker_index", "worker", a_server)),
        // A checkpoint cannot be read yet.
        (
            server(),
            "init_server from a checkpoint",
            "loading the checkpoint `model` failed\n  because: `model` is not a checkpoint: it has no `manifest.json`"
                .into(),
        ),
        // A worker, in order.
        (worker(), "init_worker", early("init_worker", "distributed_optimizer")),
        (worker(), "distributed_optimizer, executor", early("executor", "init_worker")),
        (worker(), "distributed_optimizer, cluster", early("cluster", "init_worker")),
        (worker(), "distributed_optimizer, barrier_worker", early("barrier_worker", "init_worker")),
        (worker(), "distributed_optimizer, all_reduce", early("all_reduce", "init_worker")),
        (worker(), "distributed_optimizer, metrics.sum", early("all_reduce", "init_worker")),
        (worker(), "distributed_optimizer, shrink", early("shrink", "init_worker")),
        (worker(), "distributed_optimizer, stop_worker", early("stop_worker", "init_worker")),
        (
            worker(),
            "distributed_optimizer, init_worker, init_worker, distributed_optimizer",
            late("distributed_optimizer", "init_worker"),
        ),
        // A worker does not serve.
        (worker(), "init_server", role("init_server", "server", a_worker)),
        (worker(), "run_server", role("run_server", "server", a_worker)),
        (worker(), "server_index", role("server_index", "server", a_worker)),
        // The same order without servers.
        (alone(), "init_worker", early("init_worker", "distributed_optimizer")),
        (alone(), "barrier_worker", early("barrier_worker", "init_worker")),
        (alone(), "run_server", role("run_server", "server", "one local process")),
        (
            alone(),
            "distributed_optimizer, init_worker, stop_worker, stop_worker, init_worker",
            late("init_worker", "stop_worker"),
        ),
        (alone(), "distributed_optimizer, init_worker, stop_worker, executor", late("executor", "stop_worker")),
        (alone(), "distributed_optimizer, init_worker, stop_worker, all_reduce", late("all_reduce", "stop_worker")),
        (
            alone(),
            "distributed_optimizer, init_worker, stop_worker, distributed_optimizer",
            late("distributed_optimizer", "stop_worker"),
        ),
    ];
    for (fleet, calls, expected) in rows {
        assert_eq!(last_of(&fleet, calls), expected, "{calls}");
    }
}

#[test]
fn contradictory_options_are_refused_where_they_are_given() {
    let fleet = Fleet::init_in(None, ProcessContext::quiet([])).unwrap();
    let options =
        StrategyOptions { a_sync: Some(false), k_steps: Some(400), ..StrategyOptions::distributed_strategy() };
    let error = fleet.distributed_optimizer(Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1), &options).unwrap_err();
    assert!(error.to_string().contains("`a_sync`"), "{error}");
}

#[test]
fn a_collective_worker_names_the_rank_that_does_not_come() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let variables = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
    let fleet = Fleet::init_in(None, ProcessContext::quiet(variables)).unwrap();
    let fleet = fleet.wait_limit(std::time::Duration::from_secs(1));
    model(&fleet, Mode::Sync);
    let error: Error = fleet.init_worker().unwrap_err();
    assert_eq!(error.to_string(), format!("rank 0 did not join the job at `127.0.0.1:{port}` within 1 s"));
}
