//! How processes that know only their rank learn the endpoints of the servers.
//!
//! Rank 0 listens on a port. Every other rank connects once, sends the port it will listen on, and gets the whole list when the
//! last rank has joined:
//!
//! ```text
//! rank n -> rank 0   Hello      job, rank, a nonce
//! rank 0 -> rank n   Challenge  a nonce, and the proof that it knows the secret
//! rank n -> rank 0   Join       the proof of the other side; the number of processes it knows of; its port
//! rank 0 -> rank n   Answer     the servers, or the reason of a refusal
//! ```
//!
//! On one machine, rank 0 writes its port and a new secret into a file that only this user can read, in a directory that only
//! this user can write. A file left over from an earlier job is replaced. Every wait has the same time limit, after which an
//! error names the missing ranks. This module knows no roles: a rank with a port is a server. (In a collective
//! job that is rank 0, where the others meet it again.)

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use openfleet_core::Endpoint;
use openfleet_dist::handshake::{Challenge, Hello, Secret, Side, fresh_nonce};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::error::{Error, Result};
use super::own_file::{OwnFile, own_directory};

/// One rank of the job.
#[derive(Debug, Clone)]
pub(super) struct Participant {
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) job: String,
    /// The port it will listen on, if it is a server, or rank 0 of a collective job.
    pub(super) port: Option<u16>,
}

/// Where the ranks meet.
#[derive(Debug, Clone)]
pub(super) enum MeetingPoint {
    /// On one machine: a file in a directory of the user under `temporary` contains the port.
    File { temporary: PathBuf, name: String },
    /// On several machines.
    Address(Endpoint),
}

/// What every rank knows after the rendezvous.
#[derive(Debug, Clone)]
pub(super) struct Roster {
    /// The servers, in rank order.
    pub(super) servers: Vec<Endpoint>,
    /// The secret from the file, or the given one.
    pub(super) secret: Secret,
}

/// The largest message: a list of 4,096 servers with long names.
const MAX_MESSAGE_BYTES: u64 = 1 << 20;
/// The time limit for a reply that should come at once.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two attempts to reach rank 0.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize, Deserialize)]
struct Join {
    proof: [u8; 32],
    size: usize,
    port: Option<u16>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Servers(Vec<Endpoint>),
    Refused(String),
}

/// The content of the rendezvous file.
#[derive(Debug, Serialize, Deserialize)]
struct RendezvousFile {
    port: u16,
    secret: String,
}

/// Hosts the rendezvous on rank 0, joins it on other ranks. Returns when all ranks have joined.
pub(super) fn meet(
    participant: &Participant,
    place: &MeetingPoint,
    secret: &Secret,
    limit: Duration,
) -> Result<Roster> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(io("start a thread for", place))?;
    runtime.block_on(async {
        if participant.rank == 0 {
            host(participant, place, secret, limit).await
        } else {
            join(participant, place, secret, limit).await
        }
    })
}

/// Whether a host is a loopback address or `localhost`.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl MeetingPoint {
    /// The address that servers of the job bind to.
    pub(super) fn bind(&self) -> String {
        match self {
            MeetingPoint::File { .. } => Ipv4Addr::LOCALHOST.to_string(),
            MeetingPoint::Address(at) => match at.host().parse::<IpAddr>() {
                Ok(ip) if ip.is_loopback() => ip.to_string(),
                Ok(IpAddr::V6(_)) => "::".into(),
                Err(_) if is_loopback(at.host()) => Ipv4Addr::LOCALHOST.to_string(),
                Ok(IpAddr::V4(_)) | Err(_) => Ipv4Addr::UNSPECIFIED.to_string(),
            },
        }
    }
}

impl std::fmt::Display for MeetingPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MeetingPoint::File { temporary, name } => write!(f, "`{name}` in `{}`", temporary.display()),
            MeetingPoint::Address(at) => write!(f, "`{at}`"),
        }
    }
}

fn io(action: &'static str, place: &MeetingPoint) -> impl Fn(std::io::Error) -> Error {
    let place = place.to_string();
    move |source| Error::Io { action, place: place.clone(), source }
}

/// Rank 0: waits for all ranks, then replies to all.
async fn host(participant: &Participant, place: &MeetingPoint, secret: &Secret, limit: Duration) -> Result<Roster> {
    let deadline = Instant::now() + limit;
    let port = match place {
        MeetingPoint::File { .. } => 0,
        MeetingPoint::Address(at) => at.port(),
    };
    let listener =
        TcpListener::bind((place.bind().as_str(), port)).await.map_err(io("open the rendezvous at", place))?;
    let (secret, _file) = match place {
        MeetingPoint::Address(_) => (secret.clone(), None),
        MeetingPoint::File { temporary, name } => {
            let port = listener.local_addr().map_err(io("open the rendezvous at", place))?.port();
            let nonces = [fresh_nonce(), fresh_nonce()].concat();
            let fresh: String = nonces.iter().map(|byte| format!("{byte:02x}")).collect();
            let note =
                serde_json::to_vec(&RendezvousFile { port, secret: fresh.clone() }).map_err(std::io::Error::from);
            let file = note.and_then(|note| OwnFile::write(temporary, name, &note));
            (Secret::new(fresh), Some(file.map_err(io("write", place))?))
        }
    };
    let mut came = BTreeMap::new();
    let (arrivals, mut arriving) = mpsc::channel::<Arrival>(16);
    while came.len() + 1 < participant.size {
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => {
                let missing: Vec<usize> = (1..participant.size).filter(|rank| !came.contains_key(rank)).collect();
                let waited = limit;
                let error = Error::Absent { missing, size: participant.size, place: place.to_string(), waited };
                for arrival in came.into_values() {
                    reply(arrival, &Answer::Refused(error.to_string())).await;
                }
                return Err(error);
            }
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                let (participant, secret, arrivals) = (participant.clone(), secret.clone(), arrivals.clone());
                tokio::spawn(async move {
                    if let Ok(Some(arrival)) = timeout(REPLY_TIMEOUT, accept(stream, &participant, &secret)).await {
                        let _ = arrivals.send(arrival).await;
                    }
                });
            },
            // A rank that joins again has lost its first connection.
            Some(arrival) = arriving.recv() => {
                came.insert(arrival.rank, arrival);
            }
        }
    }
    let own = participant.port.map(|port| (0, place.host_of(None), port));
    let others =
        came.values().filter_map(|arrival| Some((arrival.rank, place.host_of(arrival.address), arrival.port?)));
    let servers = own.into_iter().chain(others).map(|(_, host, port)| Endpoint::new(&host, port));
    let servers = servers.collect::<openfleet_core::Result<Vec<Endpoint>>>()?;
    for arrival in came.into_values() {
        reply(arrival, &Answer::Servers(servers.clone())).await;
    }
    Ok(Roster { servers, secret })
}

impl MeetingPoint {
    /// The host under which others reach a rank that connected from this address; `None` is rank 0.
    fn host_of(&self, address: Option<IpAddr>) -> String {
        match (self, address.map(|ip| ip.to_canonical())) {
            (MeetingPoint::File { .. }, _) => Ipv4Addr::LOCALHOST.to_string(),
            (MeetingPoint::Address(_), Some(ip)) if !ip.is_loopback() => ip.to_string(),
            // It is on the same machine as rank 0.
            (MeetingPoint::Address(at), _) => at.host().to_owned(),
        }
    }
}

/// An authenticated rank that waits for its reply.
struct Arrival {
    rank: usize,
    port: Option<u16>,
    address: Option<IpAddr>,
    stream: BufReader<TcpStream>,
}

/// Authenticates a connection; `None` if it is refused.
async fn accept(stream: TcpStream, participant: &Participant, secret: &Secret) -> Option<Arrival> {
    let address = stream.peer_addr().ok().map(|address| address.ip());
    let mut stream = BufReader::new(stream);
    let hello: Hello = receive(&mut stream).await.ok()?;
    let nonce = fresh_nonce();
    let proof = secret.proof(Side::Server, &hello, &nonce);
    send(&mut stream, &Challenge { nonce, proof }).await.ok()?;
    let join: Join = receive(&mut stream).await.ok()?;
    let rank = hello.rank as usize;
    let reason = if hello.job != participant.job {
        format!("this is job `{}`, not `{}`", participant.job, hello.job)
    } else if secret.check(Side::Worker, &hello, &nonce, &join.proof).is_err() {
        "it does not know the secret of this job".into()
    } else if join.size != participant.size || rank == 0 || rank >= participant.size {
        format!("rank 0 knows of {} processes, rank {rank} of {}", participant.size, join.size)
    } else {
        return Some(Arrival { rank, port: join.port, address, stream });
    };
    let _ = send(&mut stream, &Answer::Refused(reason)).await;
    None
}

/// A rank that has disconnected reaches its own time limit.
async fn reply(mut arrival: Arrival, answer: &Answer) {
    let _ = timeout(REPLY_TIMEOUT, send(&mut arrival.stream, answer)).await;
}

/// Other ranks: connect to rank 0, join, wait for the reply. A broken connection is retried.
async fn join(participant: &Participant, place: &MeetingPoint, secret: &Secret, limit: Duration) -> Result<Roster> {
    let deadline = Instant::now() + limit;
    let route = match place {
        MeetingPoint::Address(at) => Route::Address(at),
        MeetingPoint::File { temporary, name } => {
            Route::File(own_directory(temporary).map_err(io("read", place))?.join(name))
        }
    };
    loop {
        let attempt = timeout_at(deadline, ask(participant, &route, secret)).await;
        match attempt {
            Ok(Ok((Answer::Servers(servers), secret))) => return Ok(Roster { servers, secret }),
            Ok(Ok((Answer::Refused(reason), _))) => {
                return Err(Error::TurnedAway { rank: participant.rank, place: place.to_string(), reason });
            }
            // Rank 0 does not listen yet, or the connection broke.
            Ok(Err(_)) if Instant::now() + RETRY_INTERVAL < deadline => tokio::time::sleep(RETRY_INTERVAL).await,
            _ => {
                let place = place.to_string();
                return Err(Error::Absent { missing: vec![0], size: participant.size, place, waited: limit });
            }
        }
    }
}

/// How to find rank 0.
enum Route<'a> {
    Address(&'a Endpoint),
    File(PathBuf),
}

async fn ask(participant: &Participant, route: &Route<'_>, secret: &Secret) -> std::io::Result<(Answer, Secret)> {
    let (host, port, secret) = match route {
        Route::Address(at) => (at.host().to_owned(), at.port(), secret.clone()),
        Route::File(path) => {
            let note: RendezvousFile = serde_json::from_reader(File::open(path)?)?;
            (Ipv4Addr::LOCALHOST.to_string(), note.port, Secret::new(note.secret))
        }
    };
    let connecting = TcpStream::connect((host.as_str(), port));
    let mut stream = BufReader::new(timeout(REPLY_TIMEOUT, connecting).await.map_err(std::io::Error::other)??);
    let hello =
        Hello { job: participant.job.clone(), rank: participant.rank as u32, incarnation: 1, nonce: fresh_nonce() };
    send(&mut stream, &hello).await?;
    let challenge: Challenge = timeout(REPLY_TIMEOUT, receive(&mut stream)).await.map_err(std::io::Error::other)??;
    if secret.check(Side::Server, &hello, &challenge.nonce, &challenge.proof).is_err() {
        return match route {
            Route::Address(_) => {
                Ok((Answer::Refused("rank 0 does not know the secret of this rank".into()), Secret::default()))
            }
            // Another process uses the port of a job that has ended.
            Route::File(_) => Err(std::io::Error::other("an old file")),
        };
    }
    let proof = secret.proof(Side::Worker, &hello, &challenge.nonce);
    send(&mut stream, &Join { proof, size: participant.size, port: participant.port }).await?;
    let answer = receive(&mut stream).await?;
    Ok((answer, secret))
}

async fn send(stream: &mut BufReader<TcpStream>, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    stream.flush().await
}

async fn receive<T: DeserializeOwned>(stream: &mut BufReader<TcpStream>) -> std::io::Result<T> {
    let mut line = Vec::new();
    stream.take(MAX_MESSAGE_BYTES).read_until(b'\n', &mut line).await?;
    Ok(serde_json::from_slice(&line)?)
}
