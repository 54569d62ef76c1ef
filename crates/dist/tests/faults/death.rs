//! Workers that die and restart, servers that fall silent, networks that are partitioned or slow.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openfleet_core::WorkId;
use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_core::topology::{Endpoint, Incarnation};
use openfleet_dist::client::{BoxedStream, Connector};
use openfleet_dist::communicator::{Communicator, Missing, Worker};
use openfleet_dist::frame::{Payload, Reader};
use openfleet_dist::gradients::{Head, PushEncoder};
use openfleet_dist::listener::{ServerConfig, serve};
use openfleet_dist::pull::PullEncoder;
use openfleet_dist::request::join::Join;
use openfleet_dist::request::leave::Leave;
use openfleet_dist::request::pull_dense::PullDense;
use openfleet_dist::request::{Kind, Request, exchange_geo, status};
use openfleet_dist::server::Outcome;
use openfleet_dist::{ClientConfig, Cluster, Error, Link, State};
use openfleet_table::{Adam, Optimizer};
use openfleet_testkit::network::{Faults, Network, endpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::time::Instant;

use crate::counter::{Thread, check, config, remote, sample, states, tables};
use crate::hostile::Log;

/// The script of a worker from its first step: skips the steps that the servers have applied, pushes the others. Ends at the
/// first error.
fn replay(communicator: &dyn Communicator, seed: u64, rank: u32, steps: u64) -> openfleet_dist::Result<u64> {
    let mut skipped = 0;
    for step in 0..steps {
        let mut thread = Thread::new();
        thread.fill(&sample(seed, rank, step), (1.0, 1.0));
        let next = communicator.next_step(0)?;
        if next.is_applied {
            skipped += 1;
            continue;
        }
        communicator.push(WorkId::step(0, next.number), &mut thread.sparse, &mut thread.dense)?;
    }
    Ok(skipped)
}

/// A restarted worker replays its script with the same numbers (design, section 17): the server that has the last push
/// recognises it, the other one applies it. `batch` is the number of steps per push; `repeats` is the number of repeated pushes
/// at the first server.
fn dies_between_two_servers(options: &StrategyOptions, batch: u64, repeats: u64) {
    const ALONE: Worker = Worker { rank: 0, count: 1, threads: 1 };
    let strategy = Strategy::resolve(options).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let states = states(2);
    let network = Network::new(1, Faults::NONE, config(), &states);
    let start = |incarnation| {
        let mut client = network.client(0, incarnation);
        client.deadline = Duration::from_millis(300);
        client.patience = client.deadline;
        client.shortest_pause = Duration::from_millis(20);
        let cluster = Cluster::new(network.links(runtime.handle(), &client), ALONE, strategy);
        let (sparse, dense) = tables();
        let communicator = cluster.communicator(&sparse, &dense).unwrap();
        (cluster, communicator)
    };
    let whole = 6;
    let (cluster, first) = start(1);
    assert_eq!(replay(first.as_ref(), 9, 0, whole).unwrap(), 0);
    first.flush().unwrap();
    network.partition(1, true);
    // In the same process the counters continue: these are steps 6 and later.
    let outcomes: Vec<_> = (whole..whole + batch)
        .map(|step| {
            let mut thread = Thread::new();
            thread.fill(&sample(9, 0, step), (1.0, 1.0));
            thread.push(first.as_ref())
        })
        .collect();
    let error = outcomes.into_iter().find_map(Result::err).unwrap();
    assert!(matches!(&error, Error::Deadline { endpoint, .. } if endpoint == "server:2"), "{error}");
    let stands = |server: usize| states[server].status().positions.iter().map(|(_, at)| *at).min();
    assert_eq!((stands(0), stands(1)), (Some(whole + batch), Some(whole)), "pushed to one of two servers");
    drop((cluster, first));

    network.partition(1, false);
    let (_cluster, second) = start(2);
    assert_eq!(replay(second.as_ref(), 9, 0, 20).unwrap(), whole, "what all servers had is skipped");
    second.close().unwrap();
    assert_eq!(states[0].status().repeats, repeats, "answered and not applied");
    check(&states, (0..20).map(|step| sample(9, 0, step)), "a worker that died");
}

fn merging(merge: i64) -> StrategyOptions {
    let mut options = StrategyOptions::for_mode(Mode::Async);
    options.independent_recv_thread = Some(false);
    options.max_merge_var_num = Some(merge);
    options
}

#[test]
fn a_worker_that_died_between_two_servers_resumes_without_counting_twice() {
    dies_between_two_servers(&merging(1), 1, 1);
    dies_between_two_servers(&StrategyOptions::for_mode(Mode::Sync), 1, 1);
    dies_between_two_servers(&StrategyOptions::for_mode(Mode::HalfAsync), 1, 1);
    // The sparse and the dense push of the step.
    dies_between_two_servers(&StrategyOptions::for_mode(Mode::Hybrid), 1, 2);
}

#[test]
fn a_merged_push_that_reached_one_of_two_servers_is_taken_up_again_step_by_step() {
    dies_between_two_servers(&merging(3), 3, 3);
}

/// Checks the gap between checking that an incarnation is the newest and handling its request: nothing may happen in it.
#[test]
fn once_a_newer_incarnation_is_admitted_nothing_of_an_older_one_is_applied() {
    for round in 0..50 {
        let states = states(1);
        let link = Link::in_process("here", states[0].clone(), 0);
        remote(vec![link], Worker { rank: 0, count: 1, threads: 1 }, Mode::Async).unwrap();
        states[0].admit(0, Incarnation(1)).unwrap();
        let has_begun = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let older = scope.spawn(|| {
                for step in 0.. {
                    let mut push = PushEncoder::new(Head::of(WorkId::step(0, step))).blocks();
                    push.block(0, &[-1.0; 5]);
                    let payload = push.finish();
                    let Outcome::Now(answer) = states[0].handle_as(0, Incarnation(1), Kind::Push, payload) else {
                        panic!("async pushes are answered at once");
                    };
                    if let Err(error) = answer {
                        return error;
                    }
                    if step == 10 {
                        has_begun.wait();
                    }
                }
                unreachable!("steps do not run out")
            });
            has_begun.wait();
            states[0].admit(0, Incarnation(2)).unwrap();
            let at_admission = states[0].status().positions;
            let error = older.join().unwrap();
            assert!(matches!(error, Error::Replaced { rank: 0, incarnation: Incarnation(1) }), "{error}");
            assert_eq!(states[0].status().positions, at_admission, "round {round}");
        });
    }
}

#[test]
fn a_worker_cannot_use_a_stream_of_another_worker() {
    for mode in [Mode::Sync, Mode::Async, Mode::Hybrid, Mode::Geo] {
        let states = states(1);
        let link = Link::in_process("here", states[0].clone(), 0);
        remote(vec![link], Worker { rank: 0, count: 2, threads: 2 }, mode).unwrap();
        let ask = |kind: Kind, stream: u32| {
            let payload = match kind {
                Kind::Join => Join { stream, pass: 1 }.encode().unwrap(),
                Kind::Leave => Leave { stream, pass: 1 }.encode().unwrap(),
                _ => PushEncoder::new(Head::of(WorkId::step(stream, 0))).blocks().finish(),
            };
            match states[0].handle(0, kind, payload) {
                Outcome::Now(answer) => answer.unwrap_err(),
                Outcome::Later(_) => panic!("let through: {kind:?} for stream {stream} in mode {mode}"),
            }
        };
        let (kinds, streams): (&[Kind], &[u32]) = match mode {
            // One stream per worker, after those of all training threads.
            Mode::Geo => (&[Kind::ExchangeGeo], &[6]),
            // Hybrid's sparse streams come after the others.
            Mode::Hybrid => (&[Kind::Push, Kind::Join, Kind::Leave], &[2, 3, 6, 7]),
            _ => (&[Kind::Push, Kind::Join, Kind::Leave], &[2, 3]),
        };
        for &kind in kinds {
            for &stream in streams {
                let expected = format!("worker 0 cannot use stream {stream}, which belongs to worker 1");
                assert_eq!(ask(kind, stream).to_string(), expected, "{kind:?} in mode {mode}");
            }
        }
    }
}

/// A pull was repeated because its reply was late; then the original, delayed in the network, arrives after another worker has
/// changed the row.
#[test]
fn a_pull_that_arrives_late_does_not_hide_what_changed_since() {
    const KEY: u64 = 7;
    let states = states(1);
    let link = Link::in_process("here", states[0].clone(), 0);
    remote(vec![link], Worker { rank: 0, count: 2, threads: 1 }, Mode::Geo).unwrap();
    let ask = |worker, kind, payload: &Payload| match states[0].handle(worker, kind, payload.clone()) {
        Outcome::Now(answer) => answer.unwrap(),
        Outcome::Later(_) => panic!("nobody to wait for"),
    };
    let exchange = |worker, number, differences: &[f32]| {
        // Two workers of one thread: exchanges are numbered in streams 2 and 3.
        let mut push = PushEncoder::new(Head::of(WorkId::step(2 + worker, number)));
        push.stage(&[0], &[1], &[KEY][..differences.len()], std::iter::once(differences.chunks(1)), None);
        let payload = push.blocks().finish();
        let answer = ask(worker, Kind::ExchangeGeo, &payload);
        let mut reader = Reader::new(answer.bytes());
        assert_eq!(exchange_geo::take_ticket(&mut reader).unwrap(), 0, "nobody waits for what a worker has not sent");
        exchange_geo::take_changed(&mut reader, 1).unwrap().rows.to_vec()
    };
    let mut pull = PullEncoder::new(Missing::Create, 3, 1);
    pull.stage(&[0], &[1], &[KEY]);
    let pull = pull.finish();
    exchange(0, 0, &[1.0]);
    ask(1, Kind::PullSparse, &pull);
    assert!(exchange(1, 0, &[]).is_empty(), "it came with the pull");
    exchange(0, 1, &[1.0]);
    ask(1, Kind::PullSparse, &pull);
    assert_eq!(exchange(1, 1, &[]), [2.0]);
}

#[test]
fn servers_of_geo_keep_no_state_of_rules_that_run_on_the_workers() {
    for (mode, slots) in [(Mode::Async, 2), (Mode::Geo, 0)] {
        let states = states(1);
        let link = Link::in_process("here", states[0].clone(), 0);
        let (mut sparse, mut dense) = tables();
        sparse[0].1.optimizer = Optimizer::Adam(Adam::default());
        dense[0].1.optimizer = sparse[0].1.optimizer;
        let strategy = Strategy::resolve(&StrategyOptions::for_mode(mode)).unwrap();
        let cluster = Cluster::new(vec![link], Worker { rank: 0, count: 1, threads: 1 }, strategy);
        let communicator = cluster.communicator(&sparse, &dense).unwrap();
        Thread::new().step(communicator.as_ref(), &[3, 4], (1.0, 1.0)).unwrap();
        communicator.flush().unwrap();
        let mut rows = 0;
        states[0]
            .each_row(0, |_, _, state| {
                assert_eq!(state.len(), slots, "{mode}");
                rows += 1;
            })
            .unwrap();
        assert_eq!(rows, 2);
    }
}

/// A client that pauses between two attempts, as real clients do: a paused clock advances only while all tasks wait.
fn patient(network: &Network) -> ClientConfig {
    ClientConfig { shortest_pause: Duration::from_millis(20), ..network.client(0, 1) }
}

fn ask(link: &Link) -> impl Future<Output = openfleet_dist::Result<Payload>> + use<> {
    link.send_payload(Kind::Status, Payload::new()).answer()
}

#[tokio::test(start_paused = true)]
async fn an_older_incarnation_is_refused_even_on_a_live_connection() {
    let states = states(1);
    let network = Network::new(1, Faults::NONE, config(), &states);
    let runtime = tokio::runtime::Handle::current();
    let old = network.links(&runtime, &network.client(0, 1)).remove(0);
    ask(&old).await.unwrap();
    let new = network.links(&runtime, &network.client(0, 2)).remove(0);
    ask(&new).await.unwrap();
    for _ in 0..3 {
        let error = ask(&old).await.unwrap_err();
        assert!(matches!(&error, Error::Server { message, .. } if message.contains("replaced by")), "{error}");
    }
    let connected = status::decode(ask(&new).await.unwrap().bytes()).unwrap().connected;
    assert_eq!(connected, [0]);
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_heals_is_only_a_pause() {
    let states = states(1);
    let network = Network::new(1, Faults::NONE, config(), &states);
    let link = network.links(&tokio::runtime::Handle::current(), &patient(&network)).remove(0);
    ask(&link).await.unwrap();
    network.partition(0, true);
    let asked = tokio::spawn(ask(&link));
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!asked.is_finished());
    network.partition(0, false);
    let healed = Instant::now();
    asked.await.unwrap().unwrap();
    assert!(healed.elapsed() <= Duration::from_millis(1100), "the longest pause between two attempts is 1 s");
}

#[tokio::test(start_paused = true)]
async fn a_server_out_of_reach_is_named_when_the_deadline_is_over() {
    let states = states(1);
    let network = Network::new(1, Faults::NONE, config(), &states);
    let link = network.links(&tokio::runtime::Handle::current(), &patient(&network)).remove(0);
    ask(&link).await.unwrap();
    network.partition(0, true);
    let began = Instant::now();
    let error =
        link.send_payload_within(Kind::Status, Payload::new(), Duration::from_secs(5)).answer().await.unwrap_err();
    assert_eq!(error.to_string(), "server `server:1` did not answer `status` within 5 s");
    assert!((4900..5200).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_is_logged_with_the_request_and_the_server() {
    let (log, states) = (Log::listen(), states(1));
    let network = Network::new(1, Faults::NONE, config(), &states);
    let link = network.links(&tokio::runtime::Handle::current(), &patient(&network)).remove(0);
    network.partition(0, true);
    link.send_payload_within(Kind::Barrier, Payload::new(), Duration::from_secs(75)).answer().await.unwrap_err();
    let said = log.take();
    let told: Vec<&str> = said.lines().filter(|line| line.contains("has not answered")).collect();
    let expected = [30, 60].map(|s| format!("server server:1 has not answered `barrier` for {s} s; the limit is 75 s"));
    assert_eq!(told, expected);
}

/// A server that sends and receives slowly, and whose first connection can be frozen.
struct Slow {
    state: Arc<State>,
    config: Arc<ServerConfig>,
    /// Between two pieces of 1 KiB.
    pause: Duration,
    frozen: Arc<AtomicBool>,
    connections: AtomicU64,
}

impl Slow {
    fn new(pause: Duration) -> Arc<Self> {
        let (state, config) = (Arc::new(State::new()), Arc::new(config()));
        Arc::new(Slow { state, config, pause, frozen: Arc::default(), connections: AtomicU64::new(0) })
    }
}

impl Connector for Slow {
    fn connect(&self, _: &Endpoint) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send>> {
        let (client, near) = duplex(1024);
        let (far, serving) = duplex(1024);
        let is_first = self.connections.fetch_add(1, Ordering::SeqCst) == 0;
        tokio::spawn(serve(serving, self.config.clone(), self.state.clone(), "slow".into()));
        let ((near_read, near_write), (far_read, far_write)) = (split(near), split(far));
        for (mut from, mut to) in [(near_read, far_write), (far_read, near_write)] {
            let (pause, frozen) = (self.pause, self.frozen.clone());
            tokio::spawn(async move {
                let mut piece = [0; 1024];
                while let Ok(count @ 1..) = from.read(&mut piece).await {
                    if is_first && frozen.load(Ordering::SeqCst) {
                        std::future::pending::<()>().await;
                    }
                    if count == piece.len() {
                        tokio::time::sleep(pause).await;
                    }
                    if to.write_all(&piece[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
        Box::pin(async move { Ok(Box::new(client) as BoxedStream) })
    }
}

/// Promise P6: a slow network is only slow.
#[tokio::test(start_paused = true)]
async fn a_request_that_takes_longer_than_the_silence_of_a_dead_peer_arrives() {
    let slow = Slow::new(Duration::from_secs(1));
    let states = states(1);
    let client = Network::new(1, Faults::NONE, config(), &states).client(0, 1);
    let link = Link::remote(&tokio::runtime::Handle::current(), endpoint(0), client, slow.clone());
    ask(&link).await.unwrap();
    let payload = PullDense { blocks: vec![7; 3000] }.encode().unwrap();
    let began = Instant::now();
    let error = link.send_payload(Kind::PullDense, payload).answer().await.unwrap_err();
    assert!(matches!(&error, Error::Server { message, .. } if message.contains("the server has no tables")), "{error}");
    assert!(began.elapsed() > Duration::from_secs(9), "twelve pieces of a second each");
    assert_eq!(slow.connections.load(Ordering::SeqCst), 1, "nobody was taken for dead");
}

/// A server would disconnect at every attempt.
#[tokio::test(start_paused = true)]
async fn a_request_that_no_server_takes_fails_at_once() {
    let states = states(1);
    let client = ClientConfig { cap: 1024, ..Network::new(1, Faults::NONE, config(), &states).client(0, 1) };
    let link = Link::remote(&tokio::runtime::Handle::current(), endpoint(0), client, Slow::new(Duration::ZERO));
    let payload = PullDense { blocks: vec![7; 3000] }.encode().unwrap();
    let began = Instant::now();
    let error = link.send_payload(Kind::PullDense, payload).answer().await.unwrap_err();
    assert!(matches!(error, Error::TooLong { cap: 1024, .. }), "{error}");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_falls_silent_is_known_within_seconds_and_asked_again() {
    let slow = Slow::new(Duration::ZERO);
    let states = states(1);
    let client = Network::new(1, Faults::NONE, config(), &states).client(0, 1);
    let link = Link::remote(&tokio::runtime::Handle::current(), endpoint(0), client, slow.clone());
    ask(&link).await.unwrap();
    slow.frozen.store(true, Ordering::SeqCst);
    let began = Instant::now();
    ask(&link).await.unwrap();
    assert!((3..=5).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(slow.connections.load(Ordering::SeqCst), 2);
}
