//! Workers that die and come back, servers that fall silent, networks that are cut or only slow.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openfleet_core::strategy::{FloatWidth, Mode, Strategy, StrategyOptions};
use openfleet_core::topology::Endpoint;
use openfleet_dist::client::{BoxedStream, Connector};
use openfleet_dist::communicator::{Communicator, Worker, for_mode};
use openfleet_dist::frame::Payload;
use openfleet_dist::request::{Kind, pull_dense, status};
use openfleet_dist::server::{ServerConfig, serve};
use openfleet_dist::{ClientConfig, Error, Link, State};
use openfleet_testkit::network::{Faults, Network, endpoint};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::time::Instant;

use crate::counter::{Thread, check, config, remote, sample, states, tables};

/// A restarted worker asks the servers where its stream stands and goes on from there (design, section 7): the server that
/// had the last push recognises it, the other one applies it.
fn dies_between_two_servers(merge: i64) {
    const ALONE: Worker = Worker { rank: 0, count: 1, threads: 1 };
    let mut options = StrategyOptions::for_mode(Mode::Async);
    options.independent_recv_thread = Some(false);
    options.max_merge_var_num = Some(merge);
    let strategy = Strategy::resolve(&options).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let states = states(2);
    let network = Network::new(1, Faults::NONE, config(), &states);
    let start = |incarnation| -> Box<dyn Communicator> {
        let mut client = network.client(0, incarnation);
        client.deadline = Duration::from_millis(300);
        client.shortest_pause = Duration::from_millis(20);
        let links = network.links(runtime.handle(), &client);
        let (sparse, dense) = tables();
        for_mode(remote(links, ALONE, Mode::Async).unwrap(), &strategy, &sparse, &dense).unwrap()
    };
    let pushed = |step| {
        let mut thread = Thread::new();
        thread.fill(&sample(9, 0, step), (1.0, 1.0));
        thread
    };

    let first = start(1);
    assert_eq!(first.position(0).unwrap(), 0);
    let whole = 6;
    (0..whole).for_each(|step| pushed(step).push(first.as_ref()).unwrap());
    network.partition(1, true);
    let reached: u64 = merge as u64;
    let outcomes: Vec<_> = (whole..whole + reached).map(|step| pushed(step).push(first.as_ref())).collect();
    let error = outcomes.into_iter().find_map(Result::err).unwrap();
    assert!(matches!(&error, Error::Deadline { endpoint, .. } if endpoint == "server:2"), "{error}");
    let stands = |server: usize| states[server].status().positions;
    assert_eq!((stands(0), stands(1)), (vec![(0, whole + reached)], vec![(0, whole)]), "pushed to one of two servers");
    drop(first);

    network.partition(1, false);
    let second = start(2);
    assert_eq!(second.position(0).unwrap(), whole, "the restarted worker goes on with the step that one server lacks");
    (whole..20).for_each(|step| pushed(step).push(second.as_ref()).unwrap());
    second.close().unwrap();
    assert_eq!(states[0].status().repeats, reached, "answered and not applied");
    check(&states, (0..20).map(|step| sample(9, 0, step)), "a worker that died");
}

#[test]
fn a_worker_that_died_between_two_servers_goes_on_without_counting_twice() {
    dies_between_two_servers(1);
}

#[test]
fn a_merged_push_that_reached_one_of_two_servers_is_taken_up_again_step_by_step() {
    dies_between_two_servers(3);
}

/// A client that pauses between two attempts, as clients do: a driven clock moves on only while everybody waits.
fn patient(network: &Network) -> ClientConfig {
    ClientConfig { shortest_pause: Duration::from_millis(20), ..network.client(0, 1) }
}

fn ask(link: &Link) -> impl Future<Output = openfleet_dist::Result<Payload>> + use<> {
    link.ask(Kind::Status, Payload::new()).answer()
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
    let error = link.ask_within(Kind::Status, Payload::new(), Duration::from_secs(5)).answer().await.unwrap_err();
    assert_eq!(error.to_string(), "server `server:1` did not answer `status` within 5 s");
    assert!((4900..5200).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}

/// A server that moves bytes slowly, and whose first connection can be frozen.
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
    let mut payload = Payload::new();
    pull_dense::encode(&mut payload, FloatWidth::Bits32, &[7; 3000]);
    let began = Instant::now();
    let error = link.ask(Kind::PullDense, payload).answer().await.unwrap_err();
    assert!(matches!(&error, Error::Server { message, .. } if message.contains("no table has number 7")), "{error}");
    assert!(began.elapsed() > Duration::from_secs(9), "twelve pieces of a second each");
    assert_eq!(slow.connections.load(Ordering::SeqCst), 1, "nobody was taken for dead");
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
