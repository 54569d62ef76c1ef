//! The start of a connection from both sides: the handshake as frames.

use std::time::Duration;

use openfleet_core::topology::Incarnation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::handshake::{CAP, Challenge, Hello, Secret, Side, fresh_nonce};
use crate::net::{Stream, read_frame, write_frame};
use crate::server::State;

const HELLO: u16 = 0x4001;
const CHALLENGE: u16 = 0x4002;
const PROOF: u16 = 0x4003;
const WELCOME: u16 = 0x4004;
const REFUSED: u16 = 0x4005;

/// Time limit of a handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// Identity of a worker, and the job it belongs to.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Name of the job.
    pub job: String,
    /// Shared by all processes of the job.
    pub secret: Secret,
    /// Rank of the worker.
    pub rank: u32,
    /// Increases with every restart.
    pub incarnation: Incarnation,
}

/// The worker's half: proves the worker's identity and checks the server's proof. Returns the instance number of the server
/// process, which changes when the server is restarted.
pub async fn introduce(stream: &mut impl Stream, identity: &Identity, peer: &str) -> Result<u64> {
    let hello = Hello {
        job: identity.job.clone(),
        rank: identity.rank,
        incarnation: identity.incarnation.0,
        nonce: fresh_nonce(),
    };
    say(stream, HELLO, &hello, peer).await?;
    let challenge: Challenge = hear(stream, CHALLENGE, identity.rank, peer).await?;
    identity.secret.check(Side::Server, &hello, &challenge.nonce, &challenge.proof)?;
    let proof = identity.secret.proof(Side::Worker, &hello, &challenge.nonce);
    say(stream, PROOF, &proof, peer).await?;
    hear::<u64>(stream, WELCOME, identity.rank, peer).await
}

/// Tells a worker that connected without TLS that the server requires it.
pub(crate) async fn refuse_plain(stream: &mut impl Stream, peer: &str) -> Result<()> {
    let hello: Hello = hear(stream, HELLO, 0, peer).await?;
    refuse(
        stream,
        &hello,
        "this server requires TLS; give the workers the file of the certificate authority".into(),
        peer,
    )
    .await
}

/// The server's half: accepts a worker, or tells it why it is refused.
pub async fn receive(
    stream: &mut impl Stream,
    job: &str,
    secret: &Secret,
    state: &State,
    peer: &str,
) -> Result<(u32, Incarnation)> {
    let hello = authenticate(stream, job, secret, peer).await?;
    let incarnation = Incarnation(hello.incarnation);
    if let Err(reason) = state.admit(hello.rank, incarnation) {
        return refuse(stream, &hello, reason, peer).await;
    }
    if let Err(error) = welcome(stream, state.instance(), peer).await {
        state.disconnected(hello.rank);
        return Err(error);
    }
    Ok((hello.rank, incarnation))
}

/// The first half of [`receive`]: checks the job and the proof of whoever connects.
pub(crate) async fn authenticate(stream: &mut impl Stream, job: &str, secret: &Secret, peer: &str) -> Result<Hello> {
    let hello: Hello = hear(stream, HELLO, 0, peer).await?;
    if hello.job != job {
        return refuse(stream, &hello, format!("this is job `{job}`, not `{}`", hello.job), peer).await;
    }
    let nonce = fresh_nonce();
    let proof = secret.proof(Side::Server, &hello, &nonce);
    say(stream, CHALLENGE, &Challenge { nonce, proof }, peer).await?;
    let proof: [u8; 32] = hear(stream, PROOF, hello.rank, peer).await?;
    if secret.check(Side::Worker, &hello, &nonce, &proof).is_err() {
        return refuse(stream, &hello, "it does not know the secret of this job".into(), peer).await;
    }
    Ok(hello)
}

/// The last message of an accepted handshake.
pub(crate) async fn welcome(stream: &mut impl Stream, instance: u64, peer: &str) -> Result<()> {
    say(stream, WELCOME, &instance, peer).await
}

/// Tells the other side why it is refused, and returns that as the error.
pub(crate) async fn refuse<T>(stream: &mut impl Stream, hello: &Hello, reason: String, peer: &str) -> Result<T> {
    // The worker is refused even if the reason does not reach it.
    let _ = say_refused(stream, &reason).await;
    Err(Error::Refused { endpoint: peer.to_owned(), rank: hello.rank, reason })
}

/// Tells the other side why it is refused.
pub(crate) async fn say_refused(stream: &mut impl Stream, reason: &str) -> Result<()> {
    say(stream, REFUSED, &reason, "a process that is refused").await
}

/// Sends a message of a handshake.
pub(crate) async fn say(stream: &mut impl Stream, kind: u16, what: &impl Serialize, peer: &str) -> Result<()> {
    let bytes = serde_json::to_vec(what).map_err(|_| Error::Damaged { what: "handshake" })?;
    write_frame(stream, kind, 0, &bytes, peer).await
}

/// Receives a message of a handshake of at most [`CAP`] bytes.
async fn hear<T: DeserializeOwned>(stream: &mut impl Stream, kind: u16, rank: u32, peer: &str) -> Result<T> {
    hear_within(stream, CAP, kind, rank, peer).await
}

/// Receives a message of at most `cap` bytes. A refusal is an error.
pub(crate) async fn hear_within<T: DeserializeOwned>(
    stream: &mut impl Stream,
    cap: u64,
    kind: u16,
    rank: u32,
    peer: &str,
) -> Result<T> {
    let Some(frame) = read_frame(stream, cap, peer).await? else {
        return Err(Error::Closed { endpoint: peer.to_owned() });
    };
    if frame.kind == REFUSED {
        let reason = serde_json::from_slice(frame.payload.bytes()).unwrap_or_else(|_| "no reason given".into());
        return Err(Error::Refused { endpoint: peer.to_owned(), rank, reason });
    }
    if frame.kind != kind {
        return Err(Error::UnknownKind { kind: frame.kind });
    }
    serde_json::from_slice(frame.payload.bytes()).map_err(|_| Error::Damaged { what: "handshake" })
}
