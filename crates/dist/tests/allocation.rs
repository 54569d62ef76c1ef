//! What messages cost in memory. In its own binary, because an allocator is global.
//!
//! Promise P12: an unauthenticated peer makes a server allocate at most 1 MiB. And warm pushes and pulls use the memory of earlier
//! ones again.
#![allow(clippy::unwrap_used)] // helpers outside `#[test]` functions are tests too

use std::sync::Arc;

use openfleet_core::WorkId;
use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_core::topology::Incarnation;
use openfleet_dist::client::Tcp;
use openfleet_dist::communicator::{Missing, Remote, Worker, for_mode};
use openfleet_dist::frame::Header;
use openfleet_dist::handshake::Secret;
use openfleet_dist::listener::serve;
use openfleet_dist::session::Identity;
use openfleet_dist::stage::{DenseStage, Lookup, SparseStage};
use openfleet_dist::{ClientConfig, Link, Server, ServerConfig, State};
use openfleet_table::{Adam, DenseSpec, Initializer, Optimizer, Schedule, SparseSpec};
use openfleet_testkit::allocation::{CountingAllocator, large_allocations, live_bytes, peak_bytes, reset_peak};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::Mutex;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Tests that count for the whole process run one after another.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Maximum bytes that one connection makes the server hold, including the pipe.
async fn cost(bytes: &[u8]) -> usize {
    let state = Arc::new(State::new());
    let config = Arc::new(ServerConfig { secret: Secret::new("secret"), ..ServerConfig::default() });
    let before = live_bytes();
    reset_peak();
    let (mut ours, theirs) = duplex(4096);
    let served = tokio::spawn(serve(theirs, config, state, "stranger".into()));
    // The server may disconnect before it has read everything.
    let _ = ours.write_all(bytes).await;
    let _ = ours.shutdown().await;
    let mut answer = [0; 512];
    while matches!(ours.read(&mut answer).await, Ok(1..)) {}
    served.await.unwrap();
    peak_bytes() - before
}

#[tokio::test(start_paused = true)]
async fn at_most_a_mebibyte_is_allocated_before_a_peer_has_proved_itself() {
    const MEBIBYTE: usize = 1 << 20;
    let _alone = ALONE.lock().await;
    let header = |length| Header { kind: 0x4001, request: 1, length, checksum: 0 }.encode().to_vec();
    for length in [1 << 63, u64::MAX, 1 << 30, 4097, 4096] {
        let mut bytes = header(length);
        bytes.extend(std::iter::repeat_n(0x5b, 100_000));
        let cost = cost(&bytes).await;
        assert!(cost < MEBIBYTE, "{cost} bytes for a frame of {length}");
    }
    // The largest frame that is accepted, with the worst content for a parser.
    let nested = [b'['; 4096];
    let mut bytes = Header::of(0x4001, 1, &nested).encode().to_vec();
    bytes.extend_from_slice(&nested);
    assert!(cost(&bytes).await < MEBIBYTE);
    // A job name of full length is repeated in the refusal and in the log.
    let hello = format!(r#"{{"job":"{}","rank":0,"incarnation":1,"nonce":[{}0]}}"#, "x".repeat(4000), "0,".repeat(15));
    let mut bytes = Header::of(0x4001, 1, hello.as_bytes()).encode().to_vec();
    bytes.extend_from_slice(hello.as_bytes());
    assert!(cost(&bytes).await < MEBIBYTE);
    assert!(peak_bytes() > 0, "the allocator counts");
}

/// A worker and two servers over loopback sockets: the worker's threads, its connections and the servers together make no large
/// allocation in a warm step, whose messages have hundreds of kilobytes.
#[test]
fn warm_pushes_and_pulls_use_the_memory_of_earlier_ones() {
    const DENSE: usize = 200_000;
    const KEYS: u64 = 8_000;
    const DIM: usize = 10;
    let _alone = ALONE.blocking_lock();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for mode in [Mode::Sync, Mode::Async] {
        let strategy = Strategy::resolve(&StrategyOptions::for_mode(mode)).unwrap();
        let links: Vec<Link> = (0..2)
            .map(|_| {
                let state = Arc::new(State::new());
                let bound = Server::bind("127.0.0.1", 0, ServerConfig::default(), state);
                let server = runtime.block_on(bound).unwrap();
                let endpoint = server.endpoint().unwrap();
                runtime.spawn(server.run());
                let identity = Identity {
                    job: ServerConfig::default().job,
                    secret: Secret::default(),
                    rank: 0,
                    incarnation: Incarnation(1),
                };
                Link::remote(runtime.handle(), endpoint, ClientConfig::new(identity), Arc::new(Tcp))
            })
            .collect();
        let (optimizer, schedule) = (Optimizer::Adam(Adam::default()), Schedule::Constant(0.01));
        let sparse = SparseSpec {
            dim: DIM,
            optimizer,
            schedule: schedule.clone(),
            regularizer: None,
            initializer: Initializer::Constant(0.0),
            seed: 1,
            shards: 4,
            accessor: Default::default(),
            admission: Default::default(),
            capacity: None,
            non_finite: Default::default(),
            salted: false,
            storage: Default::default(),
        };
        let dense =
            DenseSpec { shape: vec![DENSE], optimizer, schedule, regularizer: None, non_finite: Default::default() };
        let (sparse, dense) = ([("rows".to_owned(), sparse)], [("w".to_owned(), dense, vec![0.0; DENSE])]);
        let worker = Worker { rank: 0, count: 1, threads: 1 };
        let remote = Remote::create(links, worker, mode, strategy.placement(), &sparse, &dense).unwrap();
        let communicator = for_mode(remote, &strategy, &sparse, &dense).unwrap();

        let floats = KEYS as usize * DIM;
        let (rows, gradients) = (vec![0.0; floats], vec![0.5; floats]);
        let lookup = Lookup { dim: DIM, trained: true, rows, gradients, ..Lookup::default() };
        let mut stages = [SparseStage { lookups: vec![lookup], ..SparseStage::default() }];
        stages[0].unique.start(KEYS as usize);
        stages[0].unique.add(&(0..KEYS).collect::<Vec<_>>());
        let (values, gradient) = (vec![0.0; DENSE], vec![0.5; DENSE]);
        let mut blocks = [DenseStage { values, gradient, trained: true, ..DenseStage::default() }];
        let mut steps = |count: u64| {
            for _ in 0..count {
                communicator.pull_sparse(&mut stages, Missing::Create).unwrap();
                communicator.pull_dense(&mut blocks).unwrap();
                let step = communicator.next_step(0).unwrap().number;
                communicator.push(WorkId::step(0, step), &mut stages, &mut blocks).unwrap();
            }
        };
        // How many messages are in flight at once depends on the threads, so the last block may be allocated late.
        let rounds: Vec<usize> = (0..10)
            .map(|_| {
                let before = large_allocations();
                steps(20);
                large_allocations() - before
            })
            .collect();
        assert!(rounds[1..].contains(&0), "{mode}: large allocations per 20 steps: {rounds:?}");
        communicator.close().unwrap();
    }
}
