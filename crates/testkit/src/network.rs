//! A bad network in one process: real clients and real servers, and between them a relay that knows frames and means harm.
//!
//! ```text
//! client == pipe == relay == pipe == server::serve
//! ```
//!
//! By a seeded generator the relay loses answers and requests, cuts frames in two, sends them twice, lets others overtake
//! them, and delivers what stood in the buffers of a connection long after its client has given it up. A lost frame ends
//! its connection, as TCP would have it: a stream with a hole in it does not go on. Nothing here sleeps; a late frame is
//! late by turns of the runtime or by frames that overtake it, so a faultless run and a faulty one cost about the same.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use openfleet_core::key::mix;
use openfleet_core::topology::{Endpoint, Incarnation};
use openfleet_dist::client::{BoxedStream, ClientConfig, Connector, Link};
use openfleet_dist::frame::Header;
use openfleet_dist::listener::{ServerConfig, serve};
use openfleet_dist::net::{Frame, read_frame, write_frame};
use openfleet_dist::request::REPLY;
use openfleet_dist::server::State;
use openfleet_dist::session::Identity;
use tokio::io::{AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

/// How often what goes wrong, in thousandths of all frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Answers lost; the connection breaks.
    pub lost_answers: u64,
    /// Requests lost; the connection breaks.
    pub lost_requests: u64,
    /// Frames cut in the middle; the connection breaks.
    pub cut: u64,
    /// Frames delivered a second time, some turns later.
    pub twice: u64,
    /// Frames that a few others overtake.
    pub overtaken: u64,
    /// Attempts to connect that fail.
    pub unreachable: u64,
}

impl Faults {
    /// A perfect network.
    pub const NONE: Faults =
        Faults { lost_answers: 0, lost_requests: 0, cut: 0, twice: 0, overtaken: 0, unreachable: 0 };
    /// One answer in ten is lost, and everything else happens too.
    pub const BAD: Faults =
        Faults { lost_answers: 100, lost_requests: 20, cut: 10, twice: 50, overtaken: 50, unreachable: 100 };
}

/// What has happened so far.
#[derive(Debug, Default)]
pub struct Events {
    /// Frames lost.
    pub lost: AtomicU64,
    /// Frames delivered twice.
    pub twice: AtomicU64,
    /// Frames overtaken.
    pub overtaken: AtomicU64,
    /// Requests delivered after their connection had ended.
    pub late: AtomicU64,
    /// Connections made.
    pub connections: AtomicU64,
}

/// Servers behind a bad network. Cheap to clone.
#[derive(Clone)]
pub struct Network {
    inner: Arc<Inner>,
}

struct Inner {
    seed: u64,
    faults: Faults,
    config: Arc<ServerConfig>,
    servers: Vec<Reach>,
    events: Events,
}

struct Reach {
    state: Arc<State>,
    partitioned: AtomicBool,
    /// Tells open connections to look at `partitioned`.
    changed: Notify,
}

impl Network {
    /// Servers with these states.
    pub fn new(seed: u64, faults: Faults, config: ServerConfig, states: &[Arc<State>]) -> Self {
        let reach = |state: &Arc<State>| Reach {
            state: state.clone(),
            partitioned: AtomicBool::new(false),
            changed: Notify::new(),
        };
        let servers = states.iter().map(reach).collect();
        Network {
            inner: Arc::new(Inner { seed, faults, config: Arc::new(config), servers, events: Events::default() }),
        }
    }

    /// What has happened so far.
    pub fn events(&self) -> &Events {
        &self.inner.events
    }

    /// The times of a client, short where a test would have to wait for them.
    pub fn client(&self, rank: u32, incarnation: u64) -> ClientConfig {
        let ServerConfig { job, secret, .. } = self.inner.config.as_ref().clone();
        let mut config = ClientConfig::new(Identity { job, secret, rank, incarnation: Incarnation(incarnation) });
        config.shortest_pause = std::time::Duration::ZERO;
        config
    }

    /// A link of a client to each server.
    pub fn links(&self, runtime: &tokio::runtime::Handle, config: &ClientConfig) -> Vec<Link> {
        let link = |server| Link::remote(runtime, endpoint(server), config.clone(), Arc::new(self.clone()));
        (0..self.inner.servers.len()).map(link).collect()
    }

    /// Cuts a server off, or heals the cut.
    pub fn partition(&self, server: usize, is_cut: bool) {
        let reach = &self.inner.servers[server];
        reach.partitioned.store(is_cut, Ordering::SeqCst);
        reach.changed.notify_waiters();
    }
}

/// The name of a server in this network.
pub fn endpoint(server: usize) -> Endpoint {
    let port = u16::try_from(server + 1).unwrap_or(u16::MAX);
    Endpoint::new("server", port).unwrap_or_else(|error| unreachable!("{error}"))
}

impl Connector for Network {
    fn connect(&self, endpoint: &Endpoint) -> Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send>> {
        let (inner, server) = (self.inner.clone(), usize::from(endpoint.port()) - 1);
        Box::pin(async move {
            let number = inner.events.connections.fetch_add(1, Ordering::Relaxed);
            let mut chance = Random(mix(inner.seed ^ mix(number)));
            // Whatever is tried again at once gives others their turn here.
            tokio::task::yield_now().await;
            if inner.servers[server].partitioned.load(Ordering::SeqCst) || chance.happens(inner.faults.unreachable) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (client, near) = duplex(1 << 16);
            let (far, serving) = duplex(1 << 16);
            let state = inner.servers[server].state.clone();
            tokio::spawn(serve(serving, inner.config.clone(), state, format!("connection {number}")));
            tokio::spawn(async move { Relay::new(inner.clone(), server, chance, near, far).run().await });
            Ok(Box::new(client) as BoxedStream)
        })
    }
}

/// A small generator: the same seed, the same harm.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }

    /// Whether something of so many thousandths happens now.
    pub fn happens(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// One connection between a client and a server.
struct Relay {
    inner: Arc<Inner>,
    server: usize,
    chance: Random,
    up: WriteHalf<DuplexStream>,
    down: WriteHalf<DuplexStream>,
    arrivals: mpsc::UnboundedReceiver<(Direction, Option<Frame>)>,
    readers: [AbortHandle; 2],
    /// Held back until so many frames have passed or nothing else happens.
    held: Vec<(u64, Direction, Frame)>,
}

/// The most bytes of a frame here.
const CAP: u64 = 1 << 30;
/// Handshakes are cut but not shuffled: they have no request numbers, and nobody would repeat a part of one.
const HANDSHAKE_BIT: u16 = 0x4000;

impl Relay {
    fn new(inner: Arc<Inner>, server: usize, chance: Random, near: DuplexStream, far: DuplexStream) -> Self {
        let ((from_client, down), (from_server, up)) = (split(near), split(far));
        let (sender, arrivals) = mpsc::unbounded_channel();
        let readers =
            [read_all(Direction::Up, from_client, sender.clone()), read_all(Direction::Down, from_server, sender)];
        Relay { inner, server, chance, up, down, arrivals, readers, held: Vec::new() }
    }

    async fn run(mut self) {
        let inner = self.inner.clone();
        let reach = &inner.servers[self.server];
        loop {
            let changed = reach.changed.notified();
            if reach.partitioned.load(Ordering::SeqCst) {
                break;
            }
            let patience = 1 + self.chance.below(20);
            let arrival = tokio::select! {
                biased;
                arrival = self.arrivals.recv() => arrival,
                () = changed => continue,
                () = turns(patience), if !self.held.is_empty() => {
                    let (_, direction, frame) = self.held.remove(0);
                    if !self.write(direction, &frame).await { break } else { continue }
                }
            };
            let Some((direction, Some(frame))) = arrival else { break };
            // Cut while the frame arrived: it does not get through.
            if reach.partitioned.load(Ordering::SeqCst) || !self.pass(direction, frame).await {
                break;
            }
        }
        self.end().await;
    }

    /// Delivers a frame, or not; false when the connection has broken.
    async fn pass(&mut self, direction: Direction, frame: Frame) -> bool {
        let (faults, inner) = (self.inner.faults, self.inner.clone());
        let count = |event: &AtomicU64| event.fetch_add(1, Ordering::Relaxed);
        let is_handshake = frame.kind & HANDSHAKE_BIT != 0 && frame.kind & REPLY == 0;
        if self.chance.happens(faults.cut) {
            let header = Header::of(frame.kind, frame.request, frame.payload.bytes()).encode();
            let mut bytes = header.to_vec();
            bytes.extend_from_slice(frame.payload.bytes());
            bytes.truncate(self.chance.below(bytes.len() as u64) as usize);
            let _ = self.side(direction).write_all(&bytes).await;
            count(&inner.events.lost);
            return false;
        }
        if !is_handshake {
            let lost = if direction == Direction::Down { faults.lost_answers } else { faults.lost_requests };
            if self.chance.happens(lost) {
                count(&inner.events.lost);
                // Sometimes the request is still on its way, and arrives when nobody expects it any more.
                if direction == Direction::Up && self.chance.happens(500) {
                    self.held.push((0, direction, frame));
                }
                return false;
            }
            let others = 1 + self.chance.below(4);
            if self.chance.happens(faults.overtaken) {
                count(&inner.events.overtaken);
                self.held.push((others, direction, frame));
                return true;
            }
            if self.chance.happens(faults.twice) {
                count(&inner.events.twice);
                let again = Frame { kind: frame.kind, request: frame.request, payload: frame.payload.clone() };
                self.held.push((others, direction, again));
            }
        }
        if !self.write(direction, &frame).await {
            return false;
        }
        self.held.iter_mut().for_each(|held| held.0 = held.0.saturating_sub(1));
        while let Some(at) = self.held.iter().position(|held| held.0 == 0) {
            let (_, direction, frame) = self.held.remove(at);
            if !self.write(direction, &frame).await {
                return false;
            }
        }
        true
    }

    fn side(&mut self, direction: Direction) -> &mut WriteHalf<DuplexStream> {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }

    async fn write(&mut self, direction: Direction, frame: &Frame) -> bool {
        write_frame(self.side(direction), frame.kind, frame.request, frame.payload.bytes(), "relay").await.is_ok()
    }

    /// The client sees the end at once; the server sees it after the requests that were still on their way.
    async fn end(mut self) {
        let Relay { chance, held, readers, .. } = &mut self;
        readers[0].abort();
        let (wait, held) = (1 + chance.below(200), std::mem::take(held));
        let Relay { mut up, down, readers, inner, .. } = self;
        drop(down);
        for (_, _, frame) in held.iter().filter(|held| held.1 == Direction::Up) {
            turns(wait).await;
            inner.events.late.fetch_add(1, Ordering::Relaxed);
            let _ = write_frame(&mut up, frame.kind, frame.request, frame.payload.bytes(), "relay").await;
        }
        turns(wait).await;
        readers[1].abort();
    }
}

/// Reads one side to its end, whatever the other does: a relay that writes never keeps a peer from being read.
fn read_all(
    direction: Direction,
    mut from: ReadHalf<DuplexStream>,
    to: mpsc::UnboundedSender<(Direction, Option<Frame>)>,
) -> AbortHandle {
    let reading = tokio::spawn(async move {
        loop {
            let frame = read_frame(&mut from, CAP, "relay").await.ok().flatten();
            let is_end = frame.is_none();
            if to.send((direction, frame)).is_err() || is_end {
                return;
            }
        }
    });
    reading.abort_handle()
}

/// Lets others have their turn.
async fn turns(count: u64) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}
