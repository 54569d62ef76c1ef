//! Without servers everything works in one process, by the same calls.

use std::sync::Arc;

use openfleet::fleet::{Fleet, Notices, ProcessContext};
use openfleet::variables::Variables;
use openfleet_core::strategy::{Mode, StrategyOptions};
use openfleet_dist::Reduce;
use openfleet_dist::client::Tcp;
use openfleet_dist::request::shrink::Shrink;
use openfleet_engine::{Minimize, Scope};
use openfleet_table::{Optimizer, Sgd};
use std::sync::Mutex;

use crate::{feed, model};

#[test]
fn the_same_program_trains_in_one_process() {
    let fleet = Fleet::init_in(None, ProcessContext::quiet([])).unwrap();
    assert!(fleet.is_worker() && fleet.is_first_worker() && !fleet.is_server());
    assert_eq!((fleet.worker_num(), fleet.server_num(), fleet.worker_index().unwrap()), (1, 0, 0));
    let model = model(&fleet, Mode::Async);
    fleet.init_worker().unwrap();
    assert!(fleet.cluster().unwrap().is_none());
    let scope = Arc::new(Scope::new());
    let mut executor = fleet.executor(scope.clone()).unwrap();
    executor.run_startup(&model.net.startup).unwrap();
    for step in 0..10 {
        executor.run(&model.net.main, feed(step, 0), &[model.loss]).unwrap();
    }
    fleet.barrier_worker().unwrap();
    let mut values = [1.5, -2.0];
    fleet.all_reduce(Reduce::Max, &mut values).unwrap();
    assert_eq!(values, [1.5, -2.0]);
    assert_eq!(fleet.metrics().auc(&[0, 3], &[3, 0]).unwrap(), 1.0);
    assert_eq!(fleet.split_files(&["a", "b"]).unwrap(), ["a", "b"]);
    assert_eq!(fleet.util().get_file_shard(&["a", "b"]).unwrap(), ["a", "b"]);
    // Every row was last used at time 0; at time 5 all are older than 3.
    let rows = scope.sparse("table").unwrap().len();
    assert!(rows > 0);
    let shrunk = fleet.shrink(&Shrink { now: Some(5), max_age: 3, ..Shrink::default() }).unwrap().unwrap();
    assert_eq!((shrunk.by_age, scope.sparse("table").unwrap().len()), (rows, 0));
    let other = Shrink { table: Some("other".into()), ..Shrink::default() };
    assert_eq!(
        fleet.shrink(&other).unwrap_err().to_string(),
        "no sparse table is named `other`; existing tables: `table`"
    );
    fleet.stop_worker().unwrap();
}

#[test]
fn two_fleets_in_one_process_do_not_notice_each_other() {
    let fleets = [(); 2].map(|()| Fleet::init_in(None, ProcessContext::quiet([])).unwrap());
    let strategy = StrategyOptions::distributed_strategy();
    fleets[0].distributed_optimizer(Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1), &strategy).unwrap();
    fleets[0].init_worker().unwrap();
    assert_eq!(
        fleets[1].init_worker().unwrap_err().to_string(),
        "`init_worker` was called before `distributed_optimizer`"
    );
}

/// The lines that a `Fleet` prints.
fn lines(variables: Variables, act: impl FnOnce(&Fleet)) -> Vec<String> {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    let notices = Notices::new(move |line| heard.lock().unwrap().push(line.to_owned()));
    act(&Fleet::init_in(None, ProcessContext { variables, notices, connector: Arc::new(Tcp) }).unwrap());
    said.lock().unwrap().clone()
}

#[test]
fn one_line_says_the_role_and_one_the_strategy() {
    let choose = |fleet: &Fleet| {
        let options = StrategyOptions { k_steps: Some(400), ..StrategyOptions::distributed_strategy() };
        fleet.distributed_optimizer(Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1), &options).unwrap();
    };
    assert_eq!(
        lines(Variables::default(), choose),
        [
            "one local process: no role variables are set",
            "mode geo: push differences every 400 batches, dense values averaged every 10 batches; no servers, so training \
             is local",
        ]
    );
    let worker = [
        ("TRAINING_ROLE", "TRAINER"),
        ("PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:36011"),
        ("PADDLE_TRAINERS_NUM", "1"),
        ("PADDLE_TRAINER_ID", "0"),
    ];
    assert_eq!(
        lines(worker.into_iter().collect(), choose),
        [
            "worker 0 of 1 (1 server): role from PADDLE_*",
            "worker 0 of 1: mode geo: push differences every 400 batches, dense values averaged every 10 batches",
        ]
    );
}
