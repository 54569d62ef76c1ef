//! A server's [`State`] behind a socket: accepts workers, answers their requests, and shuts down when it is told to or when all
//! workers have departed.
//!
//! Each connection has one task that reads and one that writes. The reader answers requests that can be answered at once; each
//! of the others gets its own task, so one slow step does not block the other requests of the connection.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use openfleet_core::topology::Endpoint;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::error::{Error, Result};
use crate::frame::{Payload, PayloadPool};
use crate::handshake::Secret;
use crate::net::{LastSeen, Stream, Watched, read_pooled_frame, write_frame};
use crate::request::{FAILED, Kind, RECALLED, REPLY};
use crate::server::{Outcome, State};
use crate::session::{HANDSHAKE, receive, refuse_plain};
use crate::tls::{self, ServerTls};

/// Settings of a listening server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Name of the job.
    pub job: String,
    /// Shared by all processes of the job.
    pub secret: Secret,
    /// If there is no secret: also listen on a private address (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7), not only
    /// on loopback.
    pub trusts_private_network: bool,
    /// Certificate and key for TLS; without them the server uses plain TCP.
    pub tls: Option<ServerTls>,
    /// Maximum payload of one request, in bytes.
    pub cap: u64,
    /// A worker that sends nothing for this long is considered dead.
    pub silence: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        ServerConfig {
            job: "openfleet".into(),
            secret: Secret::default(),
            trusts_private_network: false,
            tls: None,
            cap: 1 << 30,
            silence: Duration::from_secs(3),
        }
    }
}

/// Who can reach an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Processes on this machine.
    Machine,
    /// Hosts on a private network: RFC 1918, RFC 4193.
    Private,
    /// Any host, as far as the address tells. Includes the unspecified address, which stands for all addresses of the machine.
    Public,
}

/// Who can reach an address.
pub fn reach(address: IpAddr) -> Reach {
    let address = address.to_canonical();
    let is_private = match address {
        IpAddr::V4(address) => address.is_private(),
        IpAddr::V6(address) => address.is_unique_local(),
    };
    match () {
        () if address.is_loopback() => Reach::Machine,
        () if is_private => Reach::Private,
        () => Reach::Public,
    }
}

/// A bound server.
pub struct Server {
    listener: TcpListener,
    config: Arc<ServerConfig>,
    tls: Option<tls::Acceptor>,
    state: Arc<State>,
}

impl Server {
    /// Binds a socket; port 0 selects a free port.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound, or is beyond loopback and there is neither a secret nor a trusted private network
    /// ([`ServerConfig::trusts_private_network`]).
    pub async fn bind(host: &str, port: u16, config: ServerConfig, state: Arc<State>) -> Result<Self> {
        let name = format!("{host}:{port}");
        let tls = tls::ready(&config.tls, tls::Acceptor::new)?;
        let socket = |source| Error::Socket { action: "listening on", endpoint: name.clone(), source };
        let listener = TcpListener::bind((host, port)).await.map_err(socket)?;
        let address = listener.local_addr().map_err(socket)?;
        let is_trusted = match reach(address.ip()) {
            Reach::Machine => true,
            Reach::Private => config.trusts_private_network,
            Reach::Public => false,
        };
        if config.secret.is_empty() && !is_trusted {
            return Err(Error::OpenDoor { endpoint: name });
        }
        info!("server listening on {address}{}", if tls.is_some() { " with TLS" } else { "" });
        Ok(Server { listener, config: Arc::new(config), tls, state })
    }

    /// The endpoint that the server listens on.
    pub fn endpoint(&self) -> Result<Endpoint> {
        let socket = |source| Error::Socket { action: "listening on", endpoint: "?".into(), source };
        let address = self.listener.local_addr().map_err(socket)?;
        Ok(Endpoint::new(&address.ip().to_string(), address.port())?)
    }

    /// Serves until it is stopped or all workers have departed. Then it stays up until its workers have disconnected, for at
    /// most [`ServerConfig::silence`], because a worker whose last reply got lost retries.
    pub async fn run(self) -> Result<()> {
        let mut stopping = self.state.stopping();
        let mut connections = JoinSet::new();
        let mut is_stopping = false;
        let end = tokio::time::sleep(Duration::MAX);
        tokio::pin!(end);
        let mut tick = tokio::time::interval(TICK);
        while !(is_stopping && connections.is_empty()) {
            tokio::select! {
                () = stopped(&mut stopping), if !is_stopping => {
                    is_stopping = true;
                    end.as_mut().reset(Instant::now() + self.config.silence);
                }
                () = &mut end, if is_stopping => break,
                _ = tick.tick() => self.state.tick(),
                // A worker whose connection broke may reconnect; one that closed its connection is done.
                Some(ended) = connections.join_next() => if is_stopping && matches!(ended, Ok(Disconnect::Broken)) {
                    connections.spawn(linger(self.config.silence));
                },
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        let _ = stream.set_nodelay(true);
                        let (config, state) = (self.config.clone(), self.state.clone());
                        let peer = address.to_string();
                        // Two kinds of task instead of a boxed stream: plain connections pay nothing for TLS.
                        match self.tls.clone() {
                            None => connections.spawn(serve(stream, config, state, peer)),
                            Some(tls) => connections.spawn(serve_tls(stream, tls, config, state, peer)),
                        };
                    }
                    // Out of file descriptors, or the peer has already disconnected: neither stops the server.
                    Err(error) => {
                        warn!("accepting a connection failed: {error}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
        info!("server shut down");
        Ok(())
    }
}

/// Interval at which the server checks its timeouts.
const TICK: Duration = Duration::from_millis(250);

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disconnect {
    /// The worker disconnected between two requests, or failed the handshake.
    Closed,
    /// The connection broke in the middle of a frame, or the worker was silent.
    Broken,
}

async fn linger(time: Duration) -> Disconnect {
    tokio::time::sleep(time).await;
    Disconnect::Closed
}

/// Serves one connection until it ends. Public so that a test can pass its own stream.
pub async fn serve(mut stream: impl Stream, config: Arc<ServerConfig>, state: Arc<State>, peer: String) -> Disconnect {
    let greeted =
        tokio::time::timeout(HANDSHAKE, receive(&mut stream, &config.job, &config.secret, &state, &peer)).await;
    let (rank, incarnation) = match greeted {
        Ok(Ok(who)) => who,
        Ok(Err(error)) => {
            if tls::is_hello(&error) {
                warn!("{peer} was refused: it uses TLS, and this server was started without TLS");
                let _ = stream.write_all(&tls::REFUSAL).await;
            } else {
                warn!("{peer} was refused: {error}");
            }
            return Disconnect::Closed;
        }
        Err(_) => {
            warn!("{peer} was refused: no handshake within {} s", HANDSHAKE.as_secs());
            return Disconnect::Closed;
        }
    };
    let _connected = Connected { state: &state, rank };
    let (reader, mut writer) = tokio::io::split(stream);
    let heard = LastSeen::now();
    let mut reader = Watched::new(reader, heard.clone());
    let (answers, mut outgoing) = mpsc::unbounded_channel::<(u16, u64, Payload)>();
    let write_peer = peer.clone();
    let mut writing = tokio::spawn(async move {
        while let Some((kind, request, payload)) = outgoing.recv().await {
            if write_frame(&mut writer, kind, request, payload.bytes(), &write_peer).await.is_err() {
                break;
            }
        }
    });
    let pool = PayloadPool::default();
    let goodbye = loop {
        let reading = read_pooled_frame(&mut reader, config.cap, &peer, &pool);
        let frame = until_silent(&heard, config.silence, rank, &state, reading).await;
        let frame = match frame {
            Some(Ok(Some(frame))) => frame,
            Some(Ok(None)) => break Disconnect::Closed,
            Some(Err(error)) => {
                warn!("closing the connection of worker {rank} at {peer}: {}", openfleet_core::error::report(&error));
                break Disconnect::Broken;
            }
            None => {
                warn!("worker {rank} at {peer} has been silent for {:.1} s", config.silence.as_secs_f64());
                break Disconnect::Broken;
            }
        };
        let kind = match Kind::from_number(frame.kind) {
            Ok(kind) => kind,
            Err(error) => {
                warn!("worker {rank} at {peer} sent {error}");
                break Disconnect::Closed;
            }
        };
        if kind.is_slow() {
            let (answers, state) = (answers.clone(), state.clone());
            tokio::task::spawn_blocking(move || {
                if let Outcome::Now(answer) = state.handle_as(rank, incarnation, kind, frame.payload) {
                    let _ = answers.send(reply(kind, frame.request, answer));
                }
            });
            continue;
        }
        let outcome = state.handle_as(rank, incarnation, kind, frame.payload);
        // No task read from the connection while the request was handled: that was no silence of the worker.
        heard.note();
        match outcome {
            Outcome::Now(Err(error @ Error::Replaced { .. })) => {
                warn!("closing the connection of {peer}: {error}");
                let _ = answers.send(failure(FAILED, frame.request, &error.to_string()));
                break Disconnect::Closed;
            }
            Outcome::Now(answer) => {
                let _ = answers.send(reply(kind, frame.request, answer));
            }
            Outcome::Later(receiver) => {
                let answers = answers.clone();
                tokio::spawn(async move {
                    // The sender is dropped if the barrier or the group no longer exists.
                    if let Ok(answer) = receiver.await {
                        let _ = answers.send(reply(kind, frame.request, answer));
                    }
                });
            }
        }
    };
    drop(answers);
    // Send the replies that are ready, but do not wait for requests that wait for other workers.
    if tokio::time::timeout(Duration::from_secs(1), &mut writing).await.is_err() {
        // Otherwise a request that waits for other workers would keep the socket of a dead worker open.
        writing.abort();
    }
    goodbye
}

/// Serves one TLS connection. A worker that connects without TLS gets a readable refusal.
async fn serve_tls(
    mut stream: TcpStream,
    tls: tls::Acceptor,
    config: Arc<ServerConfig>,
    state: Arc<State>,
    peer: String,
) -> Disconnect {
    let mut first = [0];
    let securing = async {
        let socket = |source| Error::Socket { action: "agreeing on TLS with", endpoint: peer.clone(), source };
        if stream.peek(&mut first).await.map_err(socket)? == 1 && first[0] != tls::HELLO {
            refuse_plain(&mut stream, &peer).await?;
        }
        tls.accept(stream).await.map_err(socket)
    };
    match tokio::time::timeout(HANDSHAKE, securing).await {
        Ok(Ok(secured)) => serve(secured, config, state, peer).await,
        Ok(Err(error)) => {
            warn!("{peer} was refused: {}", openfleet_core::error::report(&error));
            Disconnect::Closed
        }
        Err(_) => {
            warn!("{peer} was refused: no TLS handshake within {} s", HANDSHAKE.as_secs());
            Disconnect::Closed
        }
    }
}

/// Counts a worker as connected until it is dropped.
struct Connected<'a> {
    state: &'a State,
    rank: u32,
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.state.disconnected(self.rank);
    }
}

async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the state is gone, which also ends the server.
    let _ = stopping.wait_for(|stop| *stop).await;
}

fn reply(kind: Kind, request: u64, answer: Result<Payload>) -> (u16, u64, Payload) {
    match answer {
        Ok(payload) => (kind as u16 | REPLY, request, payload),
        Err(error @ Error::Recalled { .. }) => failure(RECALLED, request, &error.to_string()),
        Err(error) => failure(FAILED, request, &openfleet_core::error::report(&error)),
    }
}

fn failure(kind: u16, request: u64, message: &str) -> (u16, u64, Payload) {
    let mut payload = Payload::new();
    payload.put(message.as_bytes());
    (kind, request, payload)
}

/// A worker that is silent for this share of [`ServerConfig::silence`] is reported to the others.
const NAMED: f64 = 0.6;

/// Reads a frame, or returns `None` when the worker is silent for too long. Before that, the state is told about the silence.
async fn until_silent<T>(
    heard: &LastSeen,
    silence: Duration,
    rank: u32,
    state: &State,
    reading: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(reading);
    tokio::select! {
        biased;
        frame = &mut reading => return Some(frame),
        () = heard.until_silent_for(silence.mul_f64(NAMED)) => {}
    }
    state.silent(rank, (Instant::now() - heard.silent_for()).into_std());
    let frame = heard.unless_silent_for(silence, reading).await;
    if frame.is_some() {
        state.heard(rank);
    }
    frame
}
