//! How the ranks of a collective job find each other.
//!
//! ```text
//! rank i -> rank 0   the handshake of the job, then Join: how many ranks it expects, where it listens
//! rank 0 -> rank i   Members: where every rank listens, once all have joined; or a refusal that says why
//! rank i -> rank j   for every j below i: the handshake, then Join for the connection that carries data
//! ```
//!
//! The first connection stays open for signs of life.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use openfleet_core::topology::Endpoint;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::warn;

use super::tcp::TcpTransport;
use super::watch::Watch;
use crate::error::{Error, Result, ranks};
use crate::handshake::CAP;
use crate::listener::{Reach, reach};
use crate::session::{HANDSHAKE, Identity, authenticate, hear_within, introduce, refuse, say, say_refused, welcome};

const JOIN: u16 = 0x4011;
const MEMBERS: u16 = 0x4012;
/// Longest list of members, in bytes.
const MEMBERS_CAP: u64 = 1 << 20;
/// Pause between two attempts to connect to a rank that does not listen yet.
const RETRY: Duration = Duration::from_millis(100);
/// Time before the first line about missing ranks, and between two lines.
const NOTICE: Duration = Duration::from_secs(3);

/// What a rank needs to join its job.
pub struct Rendezvous {
    /// Job, secret, rank and incarnation of this process.
    pub identity: Identity,
    /// The number of ranks.
    pub size: u32,
    /// Where rank 0 listens.
    pub meeting: Endpoint,
    /// The address that this rank listens on, a name or an address; by default the one from which it reaches rank 0.
    pub bind: Option<String>,
    /// The port that this rank listens on; 0 for any free one. Rank 0 listens on the port of `meeting`.
    pub port: u16,
    /// The host under which the others reach this rank; by default the address that rank 0 sees.
    pub host: Option<String>,
    /// How long to wait for the other ranks.
    pub wait_limit: Duration,
    /// A rank that gives no sign of life for this long is lost.
    pub silence: Duration,
    /// If there is no secret: whether to listen on a private address.
    pub trusts_private_network: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Channel {
    /// Signs of life, to rank 0.
    Watch,
    /// Data between two ranks.
    Data,
}

#[derive(Debug, Serialize, Deserialize)]
struct Join {
    channel: Channel,
    size: u32,
    /// Where this rank listens; without a host it is the address that the connection comes from.
    host: Option<String>,
    port: u16,
}

impl Rendezvous {
    /// Joins the job: returns when every rank is connected to every other. `notice` is called with lines for the user while
    /// ranks are missing.
    ///
    /// # Errors
    /// If ranks are missing when the limit has passed, if two processes have the same rank or expect another number of ranks,
    /// if a process does not know the secret, or if this address needs a secret and there is none.
    pub async fn join(&self, notice: &(dyn Fn(&str) + Sync)) -> Result<TcpTransport> {
        self.connect_all(notice).await.map_err(|error| match error {
            Error::Refused { rank, reason, .. } => {
                Error::RankRefused { rank, meeting: self.meeting.to_string(), reason }
            }
            other => other,
        })
    }

    async fn connect_all(&self, notice: &(dyn Fn(&str) + Sync)) -> Result<TcpTransport> {
        let end = Instant::now() + self.wait_limit;
        let (rank, size) = (self.identity.rank as usize, self.size as usize);
        let (mut arrivals, members, watched) = match rank {
            0 => {
                let host = self.bind.as_deref().unwrap_or(self.meeting.host());
                let mut arrivals = Arrivals::new(self, self.listen(host, self.meeting.port()).await?);
                let watched = arrivals.gather(end, notice).await?;
                (arrivals, Vec::new(), watched)
            }
            _ => {
                let (listener, members, stream) = self.announce(end, notice).await?;
                (Arrivals::new(self, listener), members, vec![(0, stream)])
            }
        };
        let failed =
            |source| Error::Socket { action: "setting up", endpoint: "the connections of a rank".into(), source };
        let watched = watched.into_iter().map(|(rank, stream)| Ok((rank, stream.into_std()?)));
        let watched = watched.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
        // From here on every rank is told if another one ends.
        let watch = Watch::start(rank, watched, self.silence).map_err(failed)?;
        let mut peers: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
        let connect_peers = async {
            for (lower, member) in members.iter().enumerate().take(rank) {
                let mut stream = self.connect(member, end).await?;
                say(&mut stream, JOIN, &self.message(Channel::Data, 0), &member.to_string()).await?;
                peers[lower] = Some(stream);
            }
            for (higher, stream) in arrivals.data(rank + 1..size, end).await? {
                peers[higher] = Some(stream);
            }
            Ok::<(), Error>(())
        };
        tokio::select! {
            connected = connect_peers => connected?,
            lost = lost(&watch) => return Err(lost),
        }
        let peers = peers.into_iter().map(|peer| peer.map(TcpStream::into_std).transpose());
        let peers = peers.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
        TcpTransport::new(rank, peers, watch).map_err(failed)
    }

    fn message(&self, channel: Channel, port: u16) -> Join {
        Join { channel, size: self.size, host: self.host.clone(), port }
    }

    async fn listen(&self, host: &str, port: u16) -> Result<TcpListener> {
        let name = format!("{host}:{port}");
        let socket = |source| Error::Socket { action: "listening on", endpoint: name.clone(), source };
        let listener = TcpListener::bind((host, port)).await.map_err(|source| match source.kind() {
            ErrorKind::AddrInUse => Error::RankRefused {
                rank: self.identity.rank,
                meeting: self.meeting.to_string(),
                reason: format!("another process listens on {name}: one of the same rank, or another program"),
            },
            _ => socket(source),
        })?;
        let is_trusted = match reach(listener.local_addr().map_err(socket)?.ip()) {
            Reach::Machine => true,
            Reach::Private => self.trusts_private_network,
            Reach::Public => false,
        };
        match self.identity.secret.is_empty() && !is_trusted {
            true => Err(Error::OpenDoor { endpoint: name }),
            false => Ok(listener),
        }
    }

    /// Connects to a rank, which may not listen yet, and proves who this is.
    async fn connect(&self, to: &Endpoint, end: Instant) -> Result<TcpStream> {
        let name = to.to_string();
        loop {
            let error = match TcpStream::connect((to.host(), to.port())).await {
                Ok(mut stream) => {
                    match tokio::time::timeout(HANDSHAKE, introduce(&mut stream, &self.identity, &name)).await {
                        Ok(Ok(_)) => return Ok(stream),
                        // A process of another run may still hold the port, and ends soon.
                        Ok(Err(error @ (Error::Closed { .. } | Error::Socket { .. }))) => error,
                        Ok(Err(error)) => return Err(error),
                        Err(_) => Error::Closed { endpoint: name.clone() },
                    }
                }
                Err(source) => Error::Socket { action: "connecting to", endpoint: name.clone(), source },
            };
            if Instant::now() + RETRY > end {
                return Err(error);
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Tells rank 0 where this rank listens, and learns where the others do.
    async fn announce(
        &self,
        end: Instant,
        notice: &(dyn Fn(&str) + Sync),
    ) -> Result<(TcpListener, Vec<Endpoint>, TcpStream)> {
        let name = self.meeting.to_string();
        let join = async {
            let mut stream = self.connect(&self.meeting, end).await?;
            let socket = |source| Error::Socket { action: "connecting to", endpoint: name.clone(), source };
            let own = stream.local_addr().map_err(socket)?.ip().to_string();
            let listener = self.listen(self.bind.as_deref().unwrap_or(&own), self.port).await?;
            let port = listener.local_addr().map_err(socket)?.port();
            say(&mut stream, JOIN, &self.message(Channel::Watch, port), &name).await?;
            let members: Vec<Endpoint> =
                hear_within(&mut stream, MEMBERS_CAP, MEMBERS, self.identity.rank, &name).await?;
            Ok((listener, members, stream))
        };
        tokio::pin!(join);
        loop {
            tokio::select! {
                joined = &mut join => return match joined {
                    Err(Error::Socket { .. } | Error::Closed { .. }) if Instant::now() + 2 * RETRY > end => {
                        Err(self.missing(vec![0]))
                    }
                    other => other,
                },
                () = tokio::time::sleep(NOTICE) => notice(&format!("waits for the other ranks at {name}")),
                // Rank 0 says who is missing; it has a little longer for that.
                () = tokio::time::sleep_until(end + HANDSHAKE) => return Err(self.missing(vec![0])),
            }
        }
    }

    fn missing(&self, absent: Vec<u32>) -> Error {
        Error::RanksAbsent { absent, meeting: self.meeting.to_string(), waited: self.wait_limit }
    }
}

/// Returns when a rank is lost.
async fn lost(watch: &Watch) -> Error {
    loop {
        if let Some(error) = watch.verdict() {
            return error;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// A rank that has joined: its message, its connection, and the address it comes from.
struct Arrival {
    rank: usize,
    join: Join,
    stream: TcpStream,
    from: SocketAddr,
}

/// Connections that arrive at this rank's listener. Each handshake is a task of its own, so a stranger delays nobody.
struct Arrivals<'a> {
    rendezvous: &'a Rendezvous,
    listener: TcpListener,
    greetings: JoinSet<Option<Arrival>>,
    data: BTreeMap<usize, TcpStream>,
}

impl<'a> Arrivals<'a> {
    fn new(rendezvous: &'a Rendezvous, listener: TcpListener) -> Self {
        Arrivals { rendezvous, listener, greetings: JoinSet::new(), data: BTreeMap::new() }
    }

    /// On rank 0: waits for all ranks and tells each of them where the others listen.
    async fn gather(&mut self, end: Instant, notice: &(dyn Fn(&str) + Sync)) -> Result<Vec<(usize, TcpStream)>> {
        let size = self.rendezvous.size as usize;
        let mut joined: BTreeMap<usize, (TcpStream, Endpoint)> = BTreeMap::new();
        let mut next_notice = Instant::now() + NOTICE;
        while joined.len() + 1 < size {
            let absent = |joined: &BTreeMap<usize, _>| -> Vec<u32> {
                (1..size).filter(|rank| !joined.contains_key(rank)).map(|rank| rank as u32).collect()
            };
            tokio::select! {
                arrived = self.next() => {
                    let Some(Arrival { rank, join, mut stream, from }) = arrived else { continue };
                    if joined.contains_key(&rank) {
                        turn_away(&mut stream, rank, &taken(rank, self.rendezvous.size)).await;
                        continue;
                    }
                    let host = join.host.unwrap_or_else(|| from.ip().to_string());
                    joined.insert(rank, (stream, Endpoint::new(&host, join.port)?));
                }
                () = tokio::time::sleep_until(next_notice) => {
                    notice(&format!("waits for {} at {}", ranks(&absent(&joined)), self.rendezvous.meeting));
                    next_notice += NOTICE;
                }
                () = tokio::time::sleep_until(end) => {
                    let error = self.rendezvous.missing(absent(&joined));
                    for (rank, (mut stream, _)) in joined {
                        turn_away(&mut stream, rank, &error.to_string()).await;
                    }
                    return Err(error);
                }
            }
        }
        let mut members = vec![self.rendezvous.meeting.clone()];
        members.extend(joined.values().map(|(_, endpoint)| endpoint.clone()));
        let mut watched = Vec::with_capacity(size - 1);
        for (rank, (mut stream, endpoint)) in joined {
            say(&mut stream, MEMBERS, &members, &endpoint.to_string()).await?;
            watched.push((rank, stream));
        }
        Ok(watched)
    }

    /// The data connections of these ranks.
    async fn data(&mut self, ranks: std::ops::Range<usize>, end: Instant) -> Result<BTreeMap<usize, TcpStream>> {
        while self.data.len() < ranks.len() {
            tokio::select! {
                arrived = self.next() => if let Some(Arrival { rank, mut stream, .. }) = arrived {
                    turn_away(&mut stream, rank, &taken(rank, self.rendezvous.size)).await;
                },
                () = tokio::time::sleep_until(end) => {
                    let absent = ranks.filter(|rank| !self.data.contains_key(rank)).map(|rank| rank as u32);
                    return Err(self.rendezvous.missing(absent.collect()));
                }
            }
        }
        Ok(std::mem::take(&mut self.data))
    }

    /// The next rank that joins, or `None` for a data connection, which is kept for later. Whoever is not of this job is
    /// refused. May be cancelled.
    async fn next(&mut self) -> Option<Arrival> {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        let (identity, size) = (self.rendezvous.identity.clone(), self.rendezvous.size);
                        self.greetings.spawn(greet_in_time(stream, from, identity, size));
                    }
                    Err(error) => {
                        warn!("accepting a connection failed: {error}");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                Some(greeted) = self.greetings.join_next() => match greeted.ok().flatten() {
                    Some(Arrival { rank, join: Join { channel: Channel::Data, .. }, stream, .. }) => {
                        self.data.insert(rank, stream);
                        return None;
                    }
                    Some(arrival) => return Some(arrival),
                    None => {}
                },
            }
        }
    }
}

/// The handshake with whoever has connected; `None` if it fails or takes too long.
async fn greet_in_time(mut stream: TcpStream, from: SocketAddr, identity: Identity, size: u32) -> Option<Arrival> {
    let peer = from.to_string();
    match tokio::time::timeout(HANDSHAKE, greet(&mut stream, &identity, size, &peer)).await {
        Ok(Ok((rank, join))) => Some(Arrival { rank, join, stream, from }),
        Ok(Err(error)) => {
            warn!("{peer} was refused: {error}");
            None
        }
        Err(_) => None,
    }
}

async fn greet(stream: &mut TcpStream, identity: &Identity, size: u32, peer: &str) -> Result<(usize, Join)> {
    let hello = authenticate(stream, &identity.job, &identity.secret, peer).await?;
    if hello.rank == identity.rank {
        return refuse(stream, &hello, taken(hello.rank as usize, size), peer).await;
    }
    if hello.rank >= size {
        return refuse(stream, &hello, format!("this job has {size} ranks, from 0 to {}", size - 1), peer).await;
    }
    welcome(stream, hello.incarnation, peer).await?;
    let join: Join = hear_within(stream, CAP, JOIN, hello.rank, peer).await?;
    if join.size != size {
        let reason = format!("rank {} was started with {size} ranks, this process with {}", identity.rank, join.size);
        return refuse(stream, &hello, reason, peer).await;
    }
    Ok((hello.rank as usize, join))
}

async fn turn_away(stream: &mut TcpStream, rank: usize, reason: &str) {
    warn!("rank {rank} was refused: {reason}");
    // The process is refused even if the reason does not reach it.
    let _ = say_refused(stream, reason).await;
}

fn taken(rank: usize, size: u32) -> String {
    format!("another process has joined as rank {rank} of {size}")
}
