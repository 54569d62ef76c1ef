//! The whole job: collectives, shrinking tables, servers that shut down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_dist::communicator::Worker;
use openfleet_dist::{ClientConfig, Cluster, Error, Link, Reduce, Server, Shrink, State};

use openfleet_table::{Accessor, CtrOptions, Shrunk};
use openfleet_testkit::network::{Faults, Network};

use crate::counter::{Thread, config, states, tables};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn cluster(links: Vec<Link>, rank: u32, count: u32) -> Cluster {
    let strategy = Strategy::resolve(&StrategyOptions::for_mode(Mode::Async)).unwrap();
    Cluster::new(links, Worker { rank, count, threads: 1 }, strategy)
}

fn in_process(states: &[Arc<State>], rank: u32, count: u32) -> Cluster {
    let link = |state: &Arc<State>| Link::in_process("here", state.clone(), rank);
    cluster(states.iter().map(link).collect(), rank, count)
}

#[test]
fn all_workers_get_the_same_numbers_whatever_the_network_does() {
    const WORKERS: u32 = 3;
    let (runtime, states) = (runtime(), states(2));
    let network = Network::new(5, Faults::BAD, config(), &states);
    let came = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for rank in 0..WORKERS {
            let links = network.links(runtime.handle(), &network.client(rank, 1));
            let came = &came;
            scope.spawn(move || {
                let cluster = cluster(links, rank, WORKERS);
                for round in 0..60u64 {
                    let mut values = [f64::from(rank), round as f64, 1.0];
                    let (op, expected) = match round % 3 {
                        0 => (Reduce::Sum, [3.0, 3.0 * round as f64, 3.0]),
                        1 => (Reduce::Max, [2.0, round as f64, 1.0]),
                        _ => (Reduce::Min, [0.0, round as f64, 1.0]),
                    };
                    cluster.all_reduce(op, &mut values).unwrap();
                    assert_eq!(values, expected, "round {round}");
                    came.fetch_add(1, SeqCst);
                    cluster.barrier().unwrap();
                    assert!(came.load(SeqCst) >= 3 * (round + 1), "a barrier opens when the last one comes");
                }
                cluster.close().unwrap();
            });
        }
    });
    assert!(network.events().lost.load(SeqCst) > 0 && network.events().twice.load(SeqCst) > 0);
    assert!(states.iter().all(|state| *state.stopping().borrow()), "all have left, though nobody made tables");
}

#[test]
fn every_part_arrives_once_whatever_the_network_does() {
    const WORKERS: u32 = 3;
    let (runtime, states) = (runtime(), states(2));
    let network = Network::new(9, Faults::BAD, config(), &states);
    std::thread::scope(|scope| {
        for rank in 0..WORKERS {
            let links = network.links(runtime.handle(), &network.client(rank, 1));
            scope.spawn(move || {
                let cluster = cluster(links, rank, WORKERS);
                for round in 0..40u32 {
                    // Barriers and all-reduces share their numbers.
                    if round % 5 == 0 {
                        cluster.barrier().unwrap();
                    }
                    let text = |from: u32, to: u32| format!("{round}: {from} to {to}").repeat(to as usize).into_bytes();
                    let parts: Vec<_> = (0..WORKERS).map(|to| (to, text(rank, to))).collect();
                    let expected: Vec<_> = (0..WORKERS).map(|from| (from, text(from, rank))).collect();
                    assert_eq!(cluster.all_to_all(&parts).unwrap(), expected);
                }
                cluster.close().unwrap();
            });
        }
    });
    assert!(network.events().lost.load(SeqCst) > 0 && network.events().twice.load(SeqCst) > 0);
}

#[test]
fn a_worker_that_left_is_not_waited_for_and_one_that_came_back_is() {
    let (runtime, states) = (runtime(), states(1));
    let network = Network::new(1, Faults::NONE, config(), &states);
    let start =
        |rank, incarnation| cluster(network.links(runtime.handle(), &network.client(rank, incarnation)), rank, 3);
    let (first, second, third) = (start(0, 1), start(1, 1), start(2, 1));
    let sum = |cluster: &Cluster, value: f64| {
        let mut values = [value];
        cluster.all_reduce(Reduce::Sum, &mut values).unwrap();
        values[0]
    };
    let sums = |clusters: [&Cluster; 3]| {
        std::thread::scope(|scope| {
            let summing = [0, 1, 2].map(|rank| scope.spawn(move || sum(clusters[rank], f64::from(1 << rank))));
            summing.map(|summing| summing.join().unwrap())
        })
    };
    assert_eq!(sums([&first, &second, &third]), [7.0; 3]);
    assert_eq!(sums([&first, &second, &third]), [7.0; 3]);
    // Its script starts from the beginning: completed collectives get the recorded replies, whatever it contributes now.
    let again = start(1, 2);
    assert_eq!([sum(&again, 100.0), sum(&again, 2.0)], [7.0; 2]);
    assert_eq!(sums([&first, &again, &third]), [7.0; 3]);
    third.close().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| sum(&first, 1.0));
        assert_eq!((sum(&again, 2.0), waiting.join().unwrap()), (3.0, 3.0));
    });
    again.close().unwrap();
    assert_eq!(sum(&first, 1.0), 1.0);
    first.close().unwrap();
    first.close().unwrap();
    assert!(*states[0].stopping().borrow());
}

#[test]
fn who_did_not_come_is_named() {
    let (runtime, states) = (runtime(), states(1));
    let network = Network::new(1, Faults::NONE, config(), &states);
    let client = ClientConfig { patience: Duration::from_millis(1), ..network.client(1, 1) };
    let hasty = cluster(network.links(runtime.handle(), &client), 1, 4);
    let error = hasty.barrier().unwrap_err();
    assert_eq!(error.to_string(), "workers 0, 2, 3 did not reach the barrier within 0.001 s");
    // The barrier is still open: calling another collective is an error.
    let patient = cluster(network.links(runtime.handle(), &network.client(1, 1)), 1, 4);
    let mut values = [5.0];
    let error = patient.all_reduce(Reduce::Max, &mut values).unwrap_err();
    let expected = "server `server:1` failed to do `all-reduce`: worker 1 called the max of 1 values of 4 workers, \
                    worker 1 called a barrier of 4 workers\n\nhint: call the same barriers, all-reduces and shuffles in the same \
                    order on every worker";
    assert_eq!(error.to_string(), expected);
    assert_eq!(values, [5.0]);
}

#[test]
fn a_worker_that_leaves_before_it_has_tables_does_not_hold_up_the_others() {
    let states = states(1);
    let strategy = Strategy::resolve(&StrategyOptions::for_mode(Mode::Sync)).unwrap();
    let clusters = [0, 1].map(|rank| {
        let link = Link::in_process("here", states[0].clone(), rank);
        Cluster::new(vec![link], Worker { rank, count: 2, threads: 1 }, strategy)
    });
    clusters[1].close().unwrap();
    let (sparse, dense) = tables();
    let communicator = clusters[0].communicator(&sparse, &dense).unwrap();
    communicator.begin(0).unwrap();
    Thread::new().step(communicator.as_ref(), &[1, 2], (1.0, 1.0)).unwrap();
    communicator.finish(0).unwrap();
    assert!(!*states[0].stopping().borrow());
    clusters[0].close().unwrap();
    assert!(*states[0].stopping().borrow());
}

#[test]
fn a_shrink_counts_once_on_all_servers_however_often_it_is_repeated() {
    let (runtime, states) = (runtime(), states(2));
    let network = Network::new(8, Faults::BAD, config(), &states);
    let cluster = cluster(network.links(runtime.handle(), &network.client(0, 1)), 0, 1);
    let (mut sparse, dense) = tables();
    let ctr = CtrOptions { show_click_decay_rate: 0.5, delete_threshold: 0.0, ..CtrOptions::default() };
    sparse.push(("clicks".to_owned(), sparse[0].1.clone()));
    sparse[1].1.accessor = Accessor::Ctr(ctr);
    let communicator = cluster.communicator(&sparse, &dense).unwrap();
    let ids: Vec<u64> = (0..40).collect();
    let mut thread = Thread::new();
    thread.sparse[0].lookups.push(openfleet_dist::stage::Lookup {
        table: 1,
        dim: 1,
        trained: true,
        rows: vec![0.0; ids.len()],
        gradients: vec![1.0; ids.len()],
    });
    thread.step(communicator.as_ref(), &ids, (1.0, 1.0)).unwrap();
    communicator.flush().unwrap();
    let shows = || {
        let mut shows = Vec::new();
        states.iter().for_each(|state| {
            state.each_whole_row(1, |row| shows.push(row.ctr.map_or(0.0, |ctr| ctr.show))).unwrap();
        });
        shows
    };
    for round in 1..=20i32 {
        let shrink = Shrink { table: Some("clicks".into()), ..Shrink::default() };
        assert_eq!(cluster.shrink(&shrink).unwrap(), Shrunk::default());
        assert_eq!(shows(), vec![0.5f32.powi(round); 40], "decayed once a round");
    }
    let repeats: u64 = states.iter().map(|state| state.status().repeats).sum();
    assert!(repeats > 0, "no shrink was ever repeated, so nothing was shown");
    let aged =
        cluster.shrink(&Shrink { table: Some("counts".into()), now: Some(9), max_age: 8, end_of_day: true }).unwrap();
    assert_eq!(aged, Shrunk { by_age: 40, ..Shrunk::default() });
    let rows: Vec<u64> = cluster.status().unwrap().iter().map(|status| status.sparse[0].1).collect();
    assert_eq!(rows, [0, 0]);
    let error = cluster.shrink(&Shrink { table: Some("click".into()), ..Shrink::default() }).unwrap_err();
    assert!(
        error.to_string().contains("no sparse table is named `click`; existing tables: `counts`, `clicks`"),
        "{error}"
    );
}

#[test]
fn servers_shut_down_when_a_worker_or_their_own_process_says_so() {
    let runtime = runtime();
    let serve = || {
        let state = Arc::new(State::new());
        let server = runtime.block_on(Server::bind("127.0.0.1", 0, config(), state.clone())).unwrap();
        (state, runtime.spawn(server.run()))
    };
    let (by_worker, by_process) = (serve(), serve());
    in_process(std::slice::from_ref(&by_worker.0), 0, 2).stop_servers().unwrap();
    by_process.0.stop();
    for (_, running) in [by_worker, by_process] {
        runtime.block_on(running).unwrap().unwrap();
    }
}

#[test]
fn in_one_process_a_disagreement_reaches_both_workers() {
    let states = states(1);
    let errors = std::thread::scope(|scope| {
        let asking = [0, 1].map(|rank| {
            let states = &states;
            let values = vec![1.0; 2 + rank as usize];
            scope.spawn(move || in_process(states, rank, 2).all_reduce(Reduce::Sum, &mut values.clone()).unwrap_err())
        });
        asking.map(|asking| asking.join().unwrap())
    });
    for error in errors {
        assert!(matches!(error, Error::Disagreement { .. }), "{error}");
        assert!(error.to_string().contains("2 values") && error.to_string().contains("3 values"), "{error}");
    }
}
