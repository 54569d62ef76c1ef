//! A bad network in one process: real clients and real servers, and between them a relay that understands frames and injects
//! faults.
//!
//! ```text
//! client == pipe == relay == pipe == server::serve
//! ```
//!
//! With a seeded random generator the relay loses replies and requests, cuts frames in two, sends them twice, reorders them,
//! and delivers frames from the buffers of a connection long after its client has given it up. A lost frame ends its
//! connection, as in TCP: a stream with a gap cannot continue. Nothing here sleeps; a late frame is delayed by turns of the
//! runtime or by frames that overtake it, so a run with faults takes about as long as one without.

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

/// Rates of faults, in thousandths of all frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Replies lost; the connection breaks.
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
    /// One reply in ten is lost, and every other fault occurs too.
    pub const BAD: Faults =
        Faults { lost_answers: 100, lost_requests: 20, cut: 10, twice: 50, overtaken: 50, unreachable: 100 };
}

/// Numbers of faults so far.
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
    /// Tells open connections to check `partitioned`.
    changed: Notify,
}

impl Network {
    /// One server per state.
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

    /// Numbers of faults so far.
    pub fn events(&self) -> &Events {
        &self.inner.events
    }

    /// Client settings with short timeouts where a test would have to wait for them.
    pub fn client(&self, rank: u32, incarnation: u64) -> ClientConfig {
        let ServerConfig { job, secret, .. } = self.inner.config.as_ref().clone();
        let mut config = ClientConfig::new(Identity { job, secret, rank, incarnation: Incarnation(incarnation) });
        config.shortest_pause = std::time::Duration::ZERO;
        config
    }

    /// One link of a client per server.
    pub fn links(&self, runtime: &tokio::runtime::Handle, config: &ClientConfig) -> Vec<Link> {
        let link = |server| Link::remote(runtime, endpoint(server), config.clone(), Arc::new(self.clone()));
        (0..self.inner.servers.len()).map(link).collect()
    }

    /// Partitions a server from its clients, or heals the partition.
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
            // Give other tasks a turn, because the client may retry at once.
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

/// A small random generator: the same seed gives the same faults.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// The next number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound.max(1)
    }

    /// Whether an event with this probability, in thousandths, happens now.
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
    /// Frames that are held back until this many frames have passed or nothing else happens.
    held: Vec<(u64, Direction, Frame)>,
}

/// Maximum payload of a frame, in bytes.
const CAP: u64 = 1 << 30;
/// Handshakes are cut but not reordered: they have no request numbers, and no client would repeat a part of one.
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
            // The server was partitioned while the frame arrived: drop it.
            if reach.partitioned.load(Ordering::SeqCst) || !self.pass(direction, frame).await {
                break;
            }
        }
        self.end().await;
    }

    /// Delivers a frame, or not; returns false when the connection has broken.
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
                // Sometimes the request is still in flight, and arrives when no client waits for it any more.
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

    /// The client sees the end at once; the server sees it after the requests that were still in flight.
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

/// Reads one side to its end, whatever the other side does: a relay that is writing never blocks a peer from being read.
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

/// Gives other tasks some turns.
async fn turns(count: u64) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}
