//! The worker's side of its servers: asks, waits, asks again.
//!
//! A [`Link`] is one server as a worker sees it. A remote link has a task that keeps a connection, sends requests as they
//! come, many in flight, and after a broken connection connects again and sends whatever was not answered: a server applies
//! work once, so asking again is always safe. Every request has a deadline. A link to a [`State`] in this process answers at
//! once, without bytes on a socket.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openfleet_core::topology::Endpoint;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::net::{Frame, LastSeen, Stream, Watched, read_frame, write_frame};
use crate::news::News;
use crate::request::{FAILED, Kind, Numbered, RECALLED, REPLY, heartbeat};
use crate::server::{Outcome, State};
use crate::session::{HANDSHAKE, Identity, introduce};
use crate::tls::{self, ClientTls};

/// How long an ordinary request may take, unless somebody says otherwise.
const DEADLINE: Duration = Duration::from_secs(30);
/// How long a request may take that waits for other workers, unless somebody says otherwise.
const PATIENCE: Duration = Duration::from_secs(900);

/// How a worker talks to its servers.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Who it is.
    pub identity: Identity,
    /// Whom it trusts, where servers speak TLS.
    pub tls: Option<ClientTls>,
    /// The most bytes of one answer.
    pub cap: u64,
    /// How long an ordinary request may take, reconnecting included.
    pub deadline: Duration,
    /// How long a request may take that waits for other workers.
    pub patience: Duration,
    /// A sign of life is sent so often.
    pub heartbeat: Duration,
    /// A server that is silent for so long is taken for dead, and connected to anew.
    pub silence: Duration,
    /// The pause before the first attempt to connect again; it doubles with each.
    pub shortest_pause: Duration,
    /// The longest pause between two attempts to connect.
    pub longest_pause: Duration,
    /// Who is missing: shared by the links to all servers.
    pub news: Arc<News>,
}

impl ClientConfig {
    /// The usual times, for an identity.
    pub fn new(identity: Identity) -> Self {
        ClientConfig {
            identity,
            tls: None,
            cap: 1 << 30,
            deadline: DEADLINE,
            patience: PATIENCE,
            heartbeat: Duration::from_secs(1),
            silence: Duration::from_secs(3),
            shortest_pause: Duration::from_millis(20),
            longest_pause: Duration::from_secs(1),
            news: Arc::new(News::new(PATIENCE)),
        }
    }
}

/// A stream that may be of any kind.
pub type BoxedStream = Box<dyn StreamObject>;

/// [`Stream`] as an object.
pub trait StreamObject: Stream {}
impl<T: Stream> StreamObject for T {}

/// How a connection is made: TCP, or whatever a test has in mind.
pub trait Connector: Send + Sync + 'static {
    /// One attempt. Names are resolved anew each time.
    fn connect(&self, endpoint: &Endpoint) -> Pin<Box<dyn Future<Output = std::io::Result<BoxedStream>> + Send>>;
}

/// TCP without delay.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Connector for Tcp {
    fn connect(&self, endpoint: &Endpoint) -> Pin<Box<dyn Future<Output = std::io::Result<BoxedStream>> + Send>> {
        let (host, port) = (endpoint.host().to_owned(), endpoint.port());
        Box::pin(async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxedStream)
        })
    }
}

/// One server as a worker sees it.
#[derive(Clone)]
pub struct Link {
    name: Arc<str>,
    way: Way,
    traffic: Arc<Traffic>,
    deadline: Duration,
    patience: Duration,
}

#[derive(Clone)]
enum Way {
    Remote {
        asks: mpsc::UnboundedSender<Ask>,
        abandoned: watch::Sender<bool>,
        /// The longest payload that a server takes.
        cap: u64,
    },
    InProcess {
        state: Arc<State>,
        rank: u32,
    },
}

/// Bytes that went over a link, headers not counted.
#[derive(Debug, Default)]
pub struct Traffic {
    /// To the server.
    pub sent: AtomicU64,
    /// From the server.
    pub received: AtomicU64,
}

struct Ask {
    kind: Kind,
    payload: Payload,
    deadline: Instant,
    waited: Duration,
    /// How often the log was told that it waits.
    told: u32,
    answer: oneshot::Sender<Result<Payload>>,
}

/// An answer on its way.
pub struct Pending {
    name: Arc<str>,
    traffic: Arc<Traffic>,
    receiver: oneshot::Receiver<Result<Payload>>,
}

impl Pending {
    /// Waits on a thread that is not the runtime's.
    pub fn wait(self) -> Result<Payload> {
        let answer = self.receiver.blocking_recv();
        finish(answer, &self.name, &self.traffic)
    }

    /// Waits in a task.
    pub async fn answer(self) -> Result<Payload> {
        let answer = self.receiver.await;
        finish(answer, &self.name, &self.traffic)
    }
}

fn finish(
    answer: Result<Result<Payload>, oneshot::error::RecvError>,
    name: &str,
    traffic: &Traffic,
) -> Result<Payload> {
    let payload = answer.unwrap_or_else(|_| Err(Error::Closed { endpoint: name.to_owned() }))?;
    traffic.received.fetch_add(payload.bytes().len() as u64, Ordering::Relaxed);
    Ok(payload)
}

impl Link {
    /// A link to a server elsewhere. Its task runs on `runtime`, which must outlive the link.
    pub fn remote(
        runtime: &tokio::runtime::Handle,
        endpoint: Endpoint,
        config: ClientConfig,
        connector: Arc<dyn Connector>,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (name, deadline, patience) = (endpoint.to_string().into(), config.deadline, config.patience);
        let (abandoned, abandonment) = watch::channel(false);
        let cap = config.cap;
        runtime.spawn(keep_connected(endpoint, config, connector, receiver, abandonment));
        let way = Way::Remote { asks: sender, abandoned, cap };
        Link { name, way, traffic: Arc::default(), deadline, patience }
    }

    /// A link to a server in this process.
    pub fn in_process(name: &str, state: Arc<State>, rank: u32) -> Self {
        let way = Way::InProcess { state, rank };
        Link { name: name.into(), way, traffic: Arc::default(), deadline: DEADLINE, patience: PATIENCE }
    }

    /// What people call the server.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes so far.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Sends a request; the answer comes within the time given.
    pub fn send_within<R: Numbered>(&self, request: &R, within: Duration) -> Result<Pending> {
        Ok(self.ask_within(R::KIND, request.encode()?, within))
    }

    /// Sends a request; the answer comes within the ordinary deadline.
    pub fn send<R: Numbered>(&self, request: &R) -> Result<Pending> {
        self.send_within(request, self.deadline)
    }

    /// Sends a request that may take longer, because it waits for other workers.
    pub fn send_patiently<R: Numbered>(&self, request: &R) -> Result<Pending> {
        self.send_within(request, self.patience)
    }

    /// Sends a payload as a request; the answer comes within the ordinary deadline.
    pub fn ask(&self, kind: Kind, payload: Payload) -> Pending {
        self.ask_within(kind, payload, self.deadline)
    }

    /// Sends a payload as a request that may take longer, because it waits for other workers.
    pub fn ask_patiently(&self, kind: Kind, payload: Payload) -> Pending {
        self.ask_within(kind, payload, self.patience)
    }

    /// Fails whatever waits for an answer, and whatever is asked from now on: this process gives up, and its own threads must
    /// not wait for what will not come. A server in this process is told that the worker departs instead: there is nobody who
    /// could start it again.
    pub fn abandon(&self, workers: u32) {
        match &self.way {
            Way::Remote { abandoned, .. } => {
                abandoned.send_replace(true);
            }
            Way::InProcess { state, rank } => drop(state.depart(*rank, workers)),
        }
    }

    /// Sends a payload as a request; the answer comes within the time given.
    pub fn ask_within(&self, kind: Kind, payload: Payload, within: Duration) -> Pending {
        self.traffic.sent.fetch_add(payload.bytes().len() as u64, Ordering::Relaxed);
        let (answer, receiver) = oneshot::channel();
        let pending = |receiver| Pending { name: self.name.clone(), traffic: self.traffic.clone(), receiver };
        match &self.way {
            Way::InProcess { state, rank } => match state.handle(*rank, kind, payload) {
                Outcome::Now(result) => {
                    let _ = answer.send(result);
                    pending(receiver)
                }
                Outcome::Later(receiver) => pending(receiver),
            },
            // A server would hang up on it, however often it is sent.
            Way::Remote { cap, .. } if payload.bytes().len() as u64 > *cap => {
                let _ = answer.send(Err(Error::TooLong { length: payload.bytes().len() as u64, cap: *cap }));
                pending(receiver)
            }
            Way::Remote { asks, .. } => {
                let ask = Ask { kind, payload, deadline: Instant::now() + within, waited: within, told: 0, answer };
                // A closed channel drops the ask, and `wait` says that the link has ended.
                let _ = asks.send(ask);
                pending(receiver)
            }
        }
    }
}

/// A request that waits longer than this tells the log, and again each time it has waited so much longer.
const LONG: Duration = Duration::from_secs(30);

/// How often late requests are looked for.
const EXPIRY: Duration = Duration::from_millis(100);

/// The number of heartbeats among requests.
const HEARTBEAT: u64 = 0;

/// Why a connection ended.
enum Ended {
    /// Nobody asks any more.
    NotNeeded,
    /// It broke; another may be made.
    Broken,
}

async fn keep_connected(
    endpoint: Endpoint,
    config: ClientConfig,
    connector: Arc<dyn Connector>,
    mut asks: mpsc::UnboundedReceiver<Ask>,
    mut abandonment: watch::Receiver<bool>,
) {
    let rank = config.identity.rank;
    let mut unanswered = Unanswered { asks: BTreeMap::new(), next: 1, endpoint: endpoint.to_string(), rank };
    {
        let connected = keep_connected_until_refused(&endpoint, &config, connector, &mut asks, &mut unanswered);
        tokio::select! {
            () = connected => return,
            // Dropped with the link: then nobody asks, and the other branch ends.
            Ok(_) = abandonment.wait_for(|abandoned| *abandoned) => {}
        }
    }
    unanswered.fail_all(&mut asks, Error::Closed { endpoint: endpoint.to_string() }).await;
}

async fn keep_connected_until_refused(
    endpoint: &Endpoint,
    config: &ClientConfig,
    connector: Arc<dyn Connector>,
    asks: &mut mpsc::UnboundedReceiver<Ask>,
    unanswered: &mut Unanswered,
) {
    let tls = match tls::ready(&config.tls, tls::Connector::new) {
        Ok(tls) => tls,
        Err(error) => return unanswered.fail_all(asks, error).await,
    };
    let name = endpoint.to_string();
    // The process behind the endpoint that this worker has talked to.
    let mut life = None;
    let mut pause = config.shortest_pause;
    loop {
        let stream = tokio::select! {
            stream = connect(endpoint, config, connector.as_ref(), tls.as_ref()) => stream,
            () = unanswered.expire_while_waiting(asks) => return,
        };
        match stream {
            Ok((stream, welcomed)) => {
                debug!("connected to server {endpoint}");
                config.news.server_is_back(&name);
                if *life.get_or_insert(welcomed) != welcomed {
                    warn!("server {endpoint} was restarted, and its tables are gone");
                    let rank = config.identity.rank;
                    return unanswered.fail_all(asks, Error::Recalled { rank }).await;
                }
                pause = config.shortest_pause;
                match converse(stream, config, asks, unanswered).await {
                    Ended::NotNeeded => return,
                    Ended::Broken => info!("the connection to server {endpoint} broke; connecting again"),
                }
            }
            Err(
                error @ (Error::Refused { .. }
                | Error::WrongSecret
                | Error::Version { .. }
                | Error::NotOurs { .. }
                | Error::Tls { .. }),
            ) => {
                warn!("{error}");
                return unanswered.fail_all(asks, error).await;
            }
            Err(error) => debug!("server {endpoint} is not ready: {error}"),
        }
        if life.is_some() {
            config.news.server_is_missing(&name);
        }
        tokio::select! {
            () = tokio::time::sleep(pause), if !pause.is_zero() => {}
            () = tokio::task::yield_now(), if pause.is_zero() => {}
            () = unanswered.expire_while_waiting(asks) => return,
        }
        pause = (pause * 2).min(config.longest_pause);
    }
}

async fn connect(
    endpoint: &Endpoint,
    config: &ClientConfig,
    connector: &dyn Connector,
    tls: Option<&tls::Connector>,
) -> Result<(BoxedStream, u64)> {
    let name = endpoint.to_string();
    let socket = |source| Error::Socket { action: "connecting to", endpoint: name.clone(), source };
    let late = |_| Error::Deadline { endpoint: name.clone(), request: "handshake", waited: HANDSHAKE };
    let mut stream =
        tokio::time::timeout(HANDSHAKE, connector.connect(endpoint)).await.map_err(late)?.map_err(socket)?;
    if let Some(tls) = tls {
        let secured = tls.connect(endpoint.host(), stream, &name);
        stream = Box::new(tokio::time::timeout(HANDSHAKE, secured).await.map_err(late)??);
    }
    let life =
        tokio::time::timeout(HANDSHAKE, introduce(&mut stream, &config.identity, &name)).await.map_err(late)??;
    Ok((stream, life))
}

/// Sends and receives until the connection ends.
async fn converse(
    stream: BoxedStream,
    config: &ClientConfig,
    asks: &mut mpsc::UnboundedReceiver<Ask>,
    unanswered: &mut Unanswered,
) -> Ended {
    let name = unanswered.endpoint.clone();
    let (reader, writer) = tokio::io::split(stream);
    let heard = LastSeen::now();
    let mut writer = Writer::new(writer, config, heard.clone(), &name);
    let mut reader = Watched::new(reader, heard.clone());
    let (frames, mut incoming) = mpsc::unbounded_channel::<Result<Option<Frame>>>();
    let (cap, read_name) = (config.cap, name.clone());
    // Reading goes on while a large request is written, or both sides could wait for each other's buffers.
    let reading = tokio::spawn(async move {
        loop {
            let frame = read_frame(&mut reader, cap, &read_name).await;
            let more = matches!(frame, Ok(Some(_)));
            if frames.send(frame).is_err() || !more {
                return;
            }
        }
    });
    let _guard = AbortOnDrop(reading);
    for (&request, ask) in &unanswered.asks {
        if !writer.write(ask.kind, request, ask.payload.bytes()).await {
            return Ended::Broken;
        }
    }
    let mut heartbeat = tokio::time::interval(config.heartbeat);
    let mut look = tokio::time::interval(EXPIRY);
    loop {
        tokio::select! {
            ask = asks.recv() => {
                let Some(ask) = ask else {
                    if unanswered.asks.is_empty() {
                        return Ended::NotNeeded;
                    }
                    return unanswered.drain(&mut incoming).await;
                };
                let request = unanswered.add(ask);
                let ask = &unanswered.asks[&request];
                if !writer.write(ask.kind, request, ask.payload.bytes()).await {
                    return Ended::Broken;
                }
            }
            frame = incoming.recv() => match frame {
                Some(Ok(Some(frame))) if frame.request == HEARTBEAT => {
                    if let Ok(absent) = heartbeat::decode(frame.payload.bytes()) {
                        config.news.workers_are_missing(&name, &absent);
                    }
                }
                Some(Ok(Some(frame))) => unanswered.answer(frame),
                _ => return Ended::Broken,
            },
            _ = look.tick() => unanswered.expire(),
            _ = heartbeat.tick() => {
                let silent = heard.silent_for();
                if silent > config.silence.mul_f64(0.6) {
                    config.news.server_is_missing(&name);
                }
                if silent > config.silence {
                    warn!("server {name} has been silent for {:.1} s", silent.as_secs_f64());
                    return Ended::Broken;
                }
                if !writer.write(Kind::Heartbeat, HEARTBEAT, &[]).await {
                    return Ended::Broken;
                }
            }
        }
    }
}

/// The writing side. No write lasts longer than a dead server's silence; one that goes on, however slowly, may.
struct Writer {
    to: Watched<tokio::io::WriteHalf<BoxedStream>>,
    moved: LastSeen,
    heard: LastSeen,
    silence: Duration,
    heartbeat: Duration,
    name: String,
}

impl Writer {
    fn new(to: tokio::io::WriteHalf<BoxedStream>, config: &ClientConfig, heard: LastSeen, name: &str) -> Self {
        let moved = LastSeen::now();
        let to = Watched::new(to, moved.clone());
        Writer { to, moved, heard, silence: config.silence, heartbeat: config.heartbeat, name: name.to_owned() }
    }

    /// Whether the connection took it.
    async fn write(&mut self, kind: Kind, request: u64, payload: &[u8]) -> bool {
        let began = Instant::now();
        self.moved.note();
        let writing = write_frame(&mut self.to, kind as u16, request, payload, &self.name);
        let written = matches!(self.moved.unless_silent_for(self.silence, writing).await, Some(Ok(())));
        if written && began.elapsed() >= self.heartbeat {
            // No heartbeat went out meanwhile, so the server had nothing to answer: that is not its silence.
            self.heard.note();
        }
        written
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Requests that were sent, or will be, and have no answer yet; in the order they were asked.
struct Unanswered {
    asks: BTreeMap<u64, Ask>,
    next: u64,
    endpoint: String,
    rank: u32,
}

impl Unanswered {
    fn add(&mut self, ask: Ask) -> u64 {
        let request = self.next;
        self.next += 1;
        self.asks.insert(request, ask);
        request
    }

    /// Hands an answer over. An answer to nothing we remember is an old one's repeat.
    fn answer(&mut self, frame: Frame) {
        let Some(ask) = self.asks.remove(&frame.request) else { return };
        let answer = if frame.kind == ask.kind as u16 | REPLY {
            Ok(frame.payload)
        } else if frame.kind == RECALLED {
            Err(Error::Recalled { rank: self.rank })
        } else if frame.kind == FAILED {
            let message = String::from_utf8_lossy(frame.payload.bytes()).into_owned();
            Err(Error::Server { endpoint: self.endpoint.clone(), request: ask.kind.name(), message })
        } else {
            Err(Error::UnknownKind { kind: frame.kind })
        };
        let _ = ask.answer.send(answer);
    }

    /// Fails what has waited too long, and tells the log of what has waited for long.
    fn expire(&mut self) {
        let now = Instant::now();
        for ask in self.asks.values_mut() {
            let waited = ask.waited.saturating_sub(ask.deadline.saturating_duration_since(now));
            if waited >= LONG * (ask.told + 1) && waited < ask.waited {
                ask.told += 1;
                info!(
                    "server {} has not answered `{}` for {} s; it is given {} s",
                    self.endpoint,
                    ask.kind.name(),
                    waited.as_secs(),
                    ask.waited.as_secs()
                );
            }
        }
        let late: Vec<u64> = self.asks.iter().filter(|(_, ask)| ask.deadline <= now).map(|(&id, _)| id).collect();
        for id in late {
            if let Some(ask) = self.asks.remove(&id) {
                let _ = ask.answer.send(Err(Error::Deadline {
                    endpoint: self.endpoint.clone(),
                    request: ask.kind.name(),
                    waited: ask.waited,
                }));
            }
        }
    }

    /// While there is no connection: takes new requests and fails late ones. Ends when nobody can ask any more and
    /// nothing is left to answer.
    async fn expire_while_waiting(&mut self, asks: &mut mpsc::UnboundedReceiver<Ask>) {
        let mut closed = false;
        loop {
            self.expire();
            if closed && self.asks.is_empty() {
                return;
            }
            tokio::select! {
                ask = asks.recv(), if !closed => match ask {
                    Some(ask) => {
                        self.add(ask);
                    }
                    None => closed = true,
                },
                () = tokio::time::sleep(EXPIRY) => {}
            }
        }
    }

    /// Nobody asks any more: waits for the last answers.
    async fn drain(&mut self, incoming: &mut mpsc::UnboundedReceiver<Result<Option<Frame>>>) -> Ended {
        while !self.asks.is_empty() {
            self.expire();
            match tokio::time::timeout(EXPIRY, incoming.recv()).await {
                Ok(Some(Ok(Some(frame)))) => self.answer(frame),
                Ok(_) => return Ended::Broken,
                Err(_) => {}
            }
        }
        Ended::NotNeeded
    }

    /// The server will not have us: so it answers everything, now and later.
    async fn fail_all(&mut self, asks: &mut mpsc::UnboundedReceiver<Ask>, error: Error) {
        let message = openfleet_core::error::report(&error);
        let recalled = error.recalled();
        let refuse = |ask: Ask, endpoint: &str| {
            let endpoint = endpoint.to_owned();
            let refusal = match recalled {
                Some(rank) => Error::Recalled { rank },
                None => Error::Server { endpoint, request: ask.kind.name(), message: message.clone() },
            };
            let _ = ask.answer.send(Err(refusal));
        };
        let waiting = std::mem::take(&mut self.asks);
        waiting.into_values().for_each(|ask| refuse(ask, &self.endpoint));
        while let Some(ask) = asks.recv().await {
            refuse(ask, &self.endpoint);
        }
    }
}
