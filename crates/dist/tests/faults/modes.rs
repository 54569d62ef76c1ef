//! What the modes promise about waiting, with hand-filled stages; and what happens if servers are gone.

use std::sync::Arc;
use std::time::Duration;

use openfleet_core::WorkId;
use openfleet_core::strategy::{
    AsyncSettings, DenseReceive, FloatWidth, HybridSettings, Merge, Mode, Strategy, StrategyOptions,
};
use openfleet_core::topology::Incarnation;
use openfleet_dist::client::Tcp;
use openfleet_dist::communicator::{Async, Communicator, Hybrid, Missing, Stepwise, Worker, for_mode};
use openfleet_dist::session::Identity;
use openfleet_dist::{ClientConfig, Cluster, Error, Link, Server, ServerConfig, State};
use openfleet_table::{DenseSpec, Schedule, SparseSpec};
use openfleet_testkit::network::{Faults, Network};

use crate::counter::{Thread, check, config, remote, sample, states, tables};

type Described = (Vec<(String, SparseSpec)>, Vec<(String, DenseSpec, Vec<f32>)>);

const ALONE: Worker = Worker { rank: 0, count: 1, threads: 1 };

fn in_process(states: &[Arc<State>], rank: u32) -> Vec<Link> {
    states.iter().map(|state| Link::in_process("here", state.clone(), rank)).collect()
}

#[test]
fn the_queue_of_async_never_exceeds_its_size() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for (max_gradients, receive) in [
        (1, DenseReceive::Independent { min_sent: 1 }),
        (5, DenseReceive::Independent { min_sent: 1 }),
        (5, DenseReceive::AfterSend),
    ] {
        let states = states(1);
        let network = Network::new(3, Faults::BAD, config(), &states);
        let links = network.links(runtime.handle(), &network.client(0, 1));
        let plan = AsyncSettings {
            merge: Merge { max_gradients, wait_ms: 0, slow_link_gradients: 1 },
            send_queue_size: 3,
            receive,
        };
        let communicator = Async::new(remote(links, ALONE, Mode::Async).unwrap(), plan);
        let mut thread = Thread::new();
        for step in 0..100 {
            thread.fill(&sample(1, 0, step), (1.0, 1.0));
            thread.push(&communicator).unwrap();
        }
        communicator.close().unwrap();
        assert!((1..=3).contains(&communicator.most_queued()), "{}", communicator.most_queued());
        check(&states, (0..100).map(|step| sample(1, 0, step)), "a small queue");
    }
}

const RECEIVES: [(usize, DenseReceive); 4] = [
    (1, DenseReceive::Independent { min_sent: 1 }),
    (3, DenseReceive::Independent { min_sent: 1 }),
    (1, DenseReceive::AfterSend),
    (3, DenseReceive::AfterSend),
];

#[test]
fn a_flush_of_async_brings_every_push_to_the_copies() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for (max_gradients, receive) in RECEIVES {
        for width in [FloatWidth::Bits32, FloatWidth::Bits16] {
            let states = states(2);
            let network = Network::new(7, Faults::NONE, config(), &states);
            let links = network.links(runtime.handle(), &network.client(0, 1));
            let plan = AsyncSettings {
                merge: Merge { max_gradients, wait_ms: 0, slow_link_gradients: 1 },
                send_queue_size: 3,
                receive,
            };
            let communicator = Async::new(remote(links, ALONE, Mode::Async).unwrap().with_float_width(width), plan);
            let mut thread = Thread::new();
            for step in 0..100 {
                thread.step(&communicator, &sample(1, 0, step), (1.0, 1.0)).unwrap();
                if step % 5 == 4 {
                    communicator.flush().unwrap();
                    communicator.pull_dense(&mut thread.dense).unwrap();
                    let case = format!("{max_gradients} merged, {receive:?}, {width:?}");
                    assert_eq!(thread.dense[0].values, [(step + 1) as f32; 5], "{case}");
                }
            }
            communicator.close().unwrap();
        }
    }
}

#[test]
fn a_flush_of_async_fails_if_the_last_push_did() {
    for (max_gradients, receive) in RECEIVES {
        for round in 0..20 {
            let states = states(1);
            let plan = AsyncSettings {
                merge: Merge { max_gradients, wait_ms: 0, slow_link_gradients: 1 },
                send_queue_size: 3,
                receive,
            };
            let communicator = Async::new(remote(in_process(&states, 0), ALONE, Mode::Async).unwrap(), plan);
            let mut thread = Thread::new();
            thread.step(&communicator, &[1], (1.0, 1.0)).unwrap();
            thread.fill(&[1], (1.0, 1.0));
            // A thread that the job does not have: the server refuses it.
            let pushed = communicator.push(WorkId::step(5, 0), &mut thread.sparse, &mut thread.dense);
            let error = pushed.and_then(|_| communicator.flush()).unwrap_err();
            assert!(error.to_string().contains("no stream has number 5"), "round {round}, {receive:?}: {error}");
        }
    }
}

/// A row is pulled once, used for two more batches, and pulled again; an evaluation and the batch after a flush see the newest.
#[test]
fn rows_are_used_again_for_the_stated_number_of_batches_and_no_longer() {
    for mode in [Mode::Async, Mode::Hybrid] {
        let states = states(2);
        let mut options = StrategyOptions::for_mode(mode);
        (options.row_staleness, options.wire_bits) = (Some(2), Some(32));
        match mode {
            // Every push is applied before the next batch.
            Mode::Async => options.independent_recv_thread = Some(false),
            _ => options.staleness = Some(1),
        }
        let (sparse, dense) = tables();
        let strategy = Strategy::resolve(&options).unwrap();
        let remote = remote(in_process(&states, 0), ALONE, mode).unwrap();
        let communicator = for_mode(remote, &strategy, &sparse, &dense).unwrap();
        let mut thread = Thread::new();
        let mut step = |ids: &[u64]| {
            thread.step(communicator.as_ref(), ids, (1.0, 1.0)).unwrap();
            thread.sparse[0].lookups[0].rows.clone()
        };
        assert_eq!(step(&[7]), [0.0]);
        assert_eq!(step(&[5, 7]), [0.0, 0.0], "id 7 was pulled by the batch before");
        assert_eq!(step(&[7, 5]), [0.0, 0.0]);
        assert_eq!(step(&[5, 7]), [0.0, 3.0], "id 7 is pulled again, id 5 one batch later");
        assert_eq!(step(&[5, 7]), [3.0, 3.0]);
        communicator.flush().unwrap();
        assert_eq!(step(&[5, 7]), [4.0, 5.0]);
        let mut evaluated = Thread::new();
        evaluated.fill(&[7, 5], (1.0, 1.0));
        communicator.pull_sparse(&mut evaluated.sparse, Missing::Initial).unwrap();
        assert_eq!(evaluated.sparse[0].lookups[0].rows, [6.0, 5.0]);
    }
}

#[test]
fn hybrid_never_has_more_than_its_staleness_in_flight() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for staleness in [1, 3] {
        let states = states(2);
        let network = Network::new(4, Faults::BAD, config(), &states);
        let links = network.links(runtime.handle(), &network.client(0, 1));
        let plan = HybridSettings { staleness };
        let communicator = Hybrid::new(remote(links, ALONE, Mode::Hybrid).unwrap(), plan);
        let mut thread = Thread::new();
        for step in 0..80 {
            thread.step(&communicator, &sample(1, 0, step), (1.0, 1.0)).unwrap();
        }
        communicator.close().unwrap();
        assert!((1..=staleness).contains(&communicator.most_in_flight()), "{}", communicator.most_in_flight());
        check(&states, (0..80).map(|step| sample(1, 0, step)), "hybrid");
    }
}

/// The one that waits is told how long it waited; the last one waits for nobody.
#[test]
fn a_push_in_step_returns_how_long_it_waited_for_the_other_worker() {
    const LATE: Duration = Duration::from_millis(30);
    for norm in [None, Some(1e9)] {
        let states = states(2);
        let workers = [0, 1].map(|rank| {
            let worker = Worker { rank, count: 2, threads: 1 };
            Stepwise::new(remote(in_process(&states, rank), worker, Mode::Sync).unwrap())
        });
        let push = |rank: usize| {
            let mut thread = Thread::new();
            thread.fill(&[1, 2, 3], (1.0, 1.0));
            let (work, communicator) = (WorkId::step(0, 0), &workers[rank]);
            match norm {
                None => communicator.push(work, &mut thread.sparse, &mut thread.dense).unwrap().barrier,
                Some(norm) => {
                    communicator.push_within_norm(work, &mut thread.sparse, &mut thread.dense, norm).unwrap().barrier
                }
            }
        };
        let (early, late) = std::thread::scope(|scope| {
            let begun: Vec<_> = workers.iter().map(|worker| scope.spawn(|| worker.begin(0).unwrap())).collect();
            begun.into_iter().for_each(|thread| thread.join().unwrap());
            let early = scope.spawn(|| push(0));
            while !states.iter().all(|state| state.status().waiting_for == [1]) {
                std::thread::yield_now();
            }
            std::thread::sleep(LATE);
            let late = push(1);
            (early.join().unwrap(), late)
        });
        assert!(early >= LATE && late < early, "{early:?}, {late:?}");
    }
}

/// Sync: a worker gets the rows of its next batch as they are after the step, whatever is lost or repeated on the way.
#[test]
fn rows_that_come_with_a_push_contain_the_step_of_all_workers() {
    const STEPS: u64 = 60;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let states = states(2);
    let network = Network::new(11, Faults::BAD, config(), &states);
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let links = network.links(runtime.handle(), &network.client(rank, 1));
            scope.spawn(move || {
                let worker = Worker { rank, count: 2, threads: 1 };
                let communicator = Stepwise::new(remote(links, worker, Mode::Sync).unwrap());
                assert!(communicator.pulls_with_pushes());
                let (mut thread, mut next) = (Thread::new(), Thread::new());
                communicator.begin(0).unwrap();
                thread.fill(&sample(1, rank, 0), (2.0, 2.0));
                let mut counts = std::collections::BTreeMap::new();
                for step in 0..STEPS {
                    next.fill(&sample(1, rank, step + 1), (2.0, 2.0));
                    let work = WorkId::step(0, step);
                    let Thread { sparse, dense, .. } = &mut thread;
                    communicator.push_and_pull(work, sparse, dense, &mut next.sparse).unwrap();
                    let pushed = (0..2).flat_map(|rank| sample(1, rank, step));
                    pushed.for_each(|id| *counts.entry(id).or_insert(0.0) += 1.0);
                    let stage = &next.sparse[0];
                    let expected = stage.unique.keys().iter().map(|key| counts.get(key).copied().unwrap_or(0.0));
                    assert_eq!(stage.lookups[0].rows, expected.collect::<Vec<f32>>(), "step {step}");
                    std::mem::swap(&mut thread.sparse, &mut next.sparse);
                }
                communicator.finish(0).unwrap();
                communicator.close().unwrap();
            });
        }
    });
    assert!(states.iter().any(|state| state.status().repeats > 0), "no push was repeated, so nothing was shown");
}

#[test]
fn half_async_threads_of_a_worker_see_equal_values_after_each_step() {
    let states = states(2);
    let worker = Worker { rank: 0, count: 1, threads: 2 };
    let communicator = Stepwise::new(remote(in_process(&states, 0), worker, Mode::HalfAsync).unwrap());
    let seen: Vec<Vec<Vec<f32>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2u32)
            .map(|number| {
                let communicator = &communicator;
                scope.spawn(move || {
                    let mut thread = Thread::new();
                    communicator.begin(number).unwrap();
                    let mut seen = Vec::new();
                    for step in 0..50 {
                        thread.fill(&sample(1, number, step), (1.0, 1.0 + number as f32));
                        communicator.push(WorkId::step(number, step), &mut thread.sparse, &mut thread.dense).unwrap();
                        seen.push(thread.dense[0].values.clone());
                    }
                    communicator.finish(number).unwrap();
                    seen
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(seen[0], seen[1]);
    // The mean of gradients -1 and -2, at rate 1.
    assert_eq!(seen[0][49], vec![75.0; seen[0][49].len()]);
    communicator.close().unwrap();
    assert!(states.iter().all(|state| *state.stopping().borrow()));
}

#[test]
fn workers_that_disagree_about_the_job_get_an_error_with_the_difference() {
    let states = states(1);
    remote(in_process(&states, 0), Worker { count: 2, ..ALONE }, Mode::Async).unwrap();
    let error = remote(in_process(&states, 1), Worker { rank: 1, count: 3, threads: 1 }, Mode::Async).err().unwrap();
    assert!(matches!(error, Error::TableMismatch { .. }), "{error}");
    assert!(error.to_string().contains("2 workers of 1 threads"), "{error}");
}

#[test]
fn workers_that_describe_a_table_differently_get_an_error_that_names_it() {
    let states = states(1);
    let strategy = Strategy::resolve(&StrategyOptions::for_mode(Mode::Async)).unwrap();
    let ask = |rank, (sparse, dense): Described| {
        let cluster = Cluster::new(in_process(&states, rank), Worker { rank, count: 2, threads: 1 }, strategy);
        cluster.communicator(&sparse, &dense).map(drop)
    };
    ask(0, tables()).unwrap();
    ask(1, tables()).unwrap();
    let (mut wider, mut reshaped, mut renamed) = (tables(), tables(), tables());
    wider.0[0].1.dim = 7;
    reshaped.1[0].1.schedule = Schedule::Constant(0.5);
    renamed.0[0].0 = "views".into();
    for (described, table, words) in [
        (wider, "counts", ["dim: 1", "dim: 7"]),
        (reshaped, "steps", ["Constant(1.0)", "Constant(0.5)"]),
        (renamed, "counts", ["\"counts\"", "\"views\""]),
    ] {
        let error = ask(1, described).unwrap_err();
        let Error::TableMismatch { table: named, existing, wanted } = &error else { panic!("{error}") };
        assert!(named.starts_with(table), "{named}: {error}");
        assert!(existing.contains(words[0]) && wanted.contains(words[1]), "{error}");
    }
}

#[tokio::test]
async fn a_door_to_the_world_needs_a_secret() {
    let open = Server::bind("0.0.0.0", 0, ServerConfig::default(), Arc::new(State::new())).await;
    assert!(matches!(open.err(), Some(Error::OpenDoor { .. })));
    Server::bind("0.0.0.0", 0, config(), Arc::new(State::new())).await.unwrap();
    Server::bind("127.0.0.1", 0, ServerConfig::default(), Arc::new(State::new())).await.unwrap();
}

#[test]
fn a_dead_server_is_named_within_the_deadline_and_a_left_one_ends() {
    for mode in [Mode::Sync, Mode::HalfAsync, Mode::Hybrid] {
        dies_and_comes_back(mode);
    }
}

fn dies_and_comes_back(mode: Mode) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let state = Arc::new(State::new());
    let server = runtime.block_on(Server::bind("127.0.0.1", 0, config(), state.clone())).unwrap();
    let endpoint = server.endpoint().unwrap();
    let running = runtime.spawn(server.run());
    let identity = Identity { job: config().job, secret: config().secret, rank: 0, incarnation: Incarnation(1) };
    let client = ClientConfig { deadline: Duration::from_millis(400), ..ClientConfig::new(identity) };
    let link = Link::remote(runtime.handle(), endpoint.clone(), client, Arc::new(Tcp));
    let strategy = Strategy::resolve(&StrategyOptions::for_mode(mode)).unwrap();
    let (sparse, dense) = tables();
    let remote = remote(vec![link], ALONE, mode).unwrap();
    let communicator = for_mode(remote, &strategy, &sparse, &dense).unwrap();
    let mut thread = Thread::new();
    thread.step(communicator.as_ref(), &[1], (1.0, 1.0)).unwrap();
    communicator.flush().unwrap();
    running.abort();
    let error = thread.step(communicator.as_ref(), &[1], (1.0, 1.0)).unwrap_err();
    assert!(
        matches!(&error, Error::Deadline { endpoint: named, request: "pull sparse", .. } if *named == endpoint.to_string()),
        "{mode}: {error}"
    );

    // The same tables behind another listener: the worker reconnects and departs, and the server shuts down by itself.
    let server = runtime.block_on(Server::bind("127.0.0.1", endpoint.port(), config(), state.clone())).unwrap();
    let running = runtime.spawn(server.run());
    thread.step(communicator.as_ref(), &[1], (1.0, 1.0)).unwrap();
    communicator.close().unwrap();
    drop(communicator);
    runtime.block_on(running).unwrap().unwrap();
    check(&[state], [vec![1], vec![1]].into_iter(), mode.name());
}
