//! Promises P12 and P13: bytes from an unauthenticated peer do no harm, and the log names the sender.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Arc;

use openfleet_core::strategy::Mode;
use openfleet_dist::communicator::Worker;
use openfleet_dist::frame::{HEADER, Header, Payload, VERSION};
use openfleet_dist::handshake::{Challenge, Hello, Secret, Side};
use openfleet_dist::listener::{Disconnect, serve};
use openfleet_dist::net::{Frame, read_frame, write_frame};
use openfleet_dist::request::{FAILED, Kind, REPLY};
use openfleet_dist::session::{Identity, introduce};
use openfleet_dist::{Error, Link, State};
use openfleet_testkit::network::Random;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tracing::field::{Field, Visit};

use crate::counter::{config, remote};

const PEER: &str = "10.6.6.6:666";
const HELLO: u16 = 0x4001;
const PROOF: u16 = 0x4003;
const WELCOME: u16 = 0x4004;
const REFUSED: u16 = 0x4005;

thread_local! {
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The log of this thread. One subscriber serves all tests of the process: with per-thread subscribers that come and go,
/// `tracing` sometimes forgets who listens.
#[derive(Clone, Copy)]
pub(crate) struct Log;

impl Log {
    pub(crate) fn listen() -> Self {
        // Another test may have been first.
        let _ = tracing::subscriber::set_global_default(Log);
        Log.take();
        Log
    }

    /// The messages since the last call.
    pub(crate) fn take(self) -> String {
        SAID.take()
    }
}

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        let _ = writeln!(self.0, "{value:?}");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        SAID.with_borrow_mut(|said| event.record(&mut Line(said)));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// A connection to a server that is being served; its task must end without a panic.
fn open(state: &Arc<State>) -> (DuplexStream, JoinHandle<Disconnect>) {
    let (ours, theirs) = duplex(1 << 20);
    let serving = serve(theirs, Arc::new(config()), state.clone(), PEER.into());
    (ours, tokio::spawn(serving))
}

/// Sends bytes, disconnects, and returns the reply.
async fn attack(state: &Arc<State>, bytes: &[u8]) -> Vec<u8> {
    let (mut stream, served) = open(state);
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    served.await.expect("a server never panics");
    answer
}

fn frame(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Header::of(kind, 0, payload).encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn hello() -> Hello {
    Hello { job: config().job, rank: 0, incarnation: 1, nonce: [7; 16] }
}

fn json(what: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(what).unwrap()
}

async fn say(stream: &mut DuplexStream, kind: u16, what: &impl serde::Serialize) {
    write_frame(stream, kind, 0, &json(what), PEER).await.unwrap();
}

async fn hear(stream: &mut DuplexStream) -> Frame {
    read_frame(stream, 4096, PEER).await.unwrap().unwrap()
}

/// What a peer without the secret may send as its proof.
type Forgery = dyn Fn(&Hello, &Challenge) -> [u8; 32];

/// Does the worker's half of the handshake by hand; returns the last frame and the proof that was sent.
async fn shake_hands(state: &Arc<State>, proof: impl Fn(&Hello, &Challenge) -> [u8; 32]) -> (Frame, [u8; 32]) {
    let (mut stream, served) = open(state);
    say(&mut stream, HELLO, &hello()).await;
    let challenge: Challenge = serde_json::from_slice(hear(&mut stream).await.payload.bytes()).unwrap();
    let proof = proof(&hello(), &challenge);
    say(&mut stream, PROOF, &proof).await;
    let last = hear(&mut stream).await;
    drop(stream);
    served.await.unwrap();
    (last, proof)
}

#[tokio::test(start_paused = true)]
async fn unauthenticated_bytes_end_the_connection_and_the_log_names_the_peer() {
    let (log, state) = (Log::listen(), Arc::new(State::new()));
    let mut chance = Random(1);
    let valid = frame(HELLO, &json(&hello()));
    let mut attacks: Vec<Vec<u8>> = vec![Vec::new(), frame(HELLO, b"{}"), frame(PROOF, b"[]"), frame(REFUSED, b"7")];
    for cut in 0..valid.len() {
        attacks.push(valid[..cut].to_vec());
    }
    for _ in 0..400 {
        attacks.push((0..chance.below(3000)).map(|_| chance.draw() as u8).collect());
        let mut mutated = valid.clone();
        for _ in 0..1 + chance.below(3) {
            let at = chance.below(mutated.len() as u64) as usize;
            mutated[at] ^= 1 << chance.below(8);
        }
        attacks.push(mutated);
        // Damage that the checksums do not see.
        let mut body = json(&hello());
        let at = chance.below(body.len() as u64) as usize;
        body[at] = chance.draw() as u8;
        attacks.push(frame(HELLO, &body));
    }
    for length in [1 << 63, u64::MAX, 1 << 40, 4097] {
        let header = Header { kind: HELLO, request: 0, length, checksum: 0 };
        attacks.push(header.encode().to_vec());
    }
    for bytes in attacks {
        attack(&state, &bytes).await;
        let said = log.take();
        assert!(said.contains(PEER) && said.contains("was refused"), "{said:?} about {bytes:?}");
    }
    assert!(state.status().connected.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_is_closed() {
    let (log, state) = (Log::listen(), Arc::new(State::new()));
    let (mut stream, served) = open(&state);
    served.await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    assert!(log.take().contains("10.6.6.6:666 was refused: no handshake within 10 s"));
}

#[tokio::test(start_paused = true)]
async fn another_version_is_named_with_both_numbers() {
    let (log, state) = (Log::listen(), Arc::new(State::new()));
    let mut bytes = frame(HELLO, &json(&hello()));
    bytes[4..6].copy_from_slice(&(VERSION + 1).to_le_bytes());
    let own = crc_fast::crc32_iscsi(&bytes[..HEADER - 4]);
    bytes[HEADER - 4..HEADER].copy_from_slice(&own.to_le_bytes());
    attack(&state, &bytes).await;
    let expected = format!("this process uses protocol version {VERSION}, the peer version {}", VERSION + 1);
    assert!(log.take().contains(&expected));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_secret_and_a_replayed_proof_are_refused_and_a_right_one_is_not() {
    let (log, state) = (Log::listen(), Arc::new(State::new()));
    let right = |hello: &Hello, challenge: &Challenge| config().secret.proof(Side::Worker, hello, &challenge.nonce);
    let (welcome, recorded) = shake_hands(&state, right).await;
    assert_eq!(welcome.kind, WELCOME);
    log.take();
    let wrong =
        |hello: &Hello, challenge: &Challenge| Secret::new("guess").proof(Side::Worker, hello, &challenge.nonce);
    let mirrored = |_: &Hello, challenge: &Challenge| challenge.proof;
    let replayed = move |_: &Hello, _: &Challenge| recorded;
    let forgeries: [&Forgery; 3] = [&wrong, &mirrored, &replayed];
    for forgery in forgeries {
        let (answer, _) = shake_hands(&state, forgery).await;
        assert_eq!(answer.kind, REFUSED);
        let said = log.take();
        assert!(said.contains(PEER) && said.contains("does not know the secret"), "{said}");
    }
    assert!(state.status().connected.is_empty());
}

#[tokio::test(start_paused = true)]
async fn another_job_is_refused_with_both_names_and_a_false_server_is_not_trusted() {
    let state = Arc::new(State::new());
    let identity = |job: &str, secret: &str| Identity {
        job: job.into(),
        secret: Secret::new(secret),
        rank: 3,
        incarnation: openfleet_core::topology::Incarnation(1),
    };
    let (mut stream, _served) = open(&state);
    let error = introduce(&mut stream, &identity("other", "a test's secret"), PEER).await.unwrap_err();
    assert!(
        matches!(&error, Error::Refused { rank: 3, reason, .. } if reason == "this is job `openfleet`, not `other`")
    );
    let (mut stream, _served) = open(&state);
    let error = introduce(&mut stream, &identity("openfleet", "another"), PEER).await.unwrap_err();
    assert!(matches!(error, Error::WrongSecret), "the server proves itself first: {error}");
}

/// Payloads that get far into a decoder, and payloads that mislead it.
fn words(chance: &mut Random) -> Vec<u8> {
    const SOME: [u32; 10] = [0, 1, 2, 3, 5, 1 << 16, 1 << 31, u32::MAX, u32::MAX - 1, 0x7f80_0000];
    let count = chance.below(24);
    (0..count)
        .flat_map(|_| {
            match chance.below(4) {
                0 => SOME[chance.below(10) as usize],
                1 => chance.draw() as u32,
                _ => chance.below(3) as u32,
            }
            .to_le_bytes()
        })
        .collect()
}

/// A worker of the job that sends garbage: every request gets a reply or ends the connection.
#[tokio::test(start_paused = true)]
async fn garbage_in_every_request_of_a_worker_is_answered_or_ends_its_connection() {
    for (round, mode) in [Mode::Sync, Mode::HalfAsync, Mode::Async, Mode::Hybrid, Mode::Geo].into_iter().enumerate() {
        let state = Arc::new(State::new());
        let link = Link::in_process("here", state.clone(), 1);
        let worker = Worker { rank: 1, count: 2, threads: 2 };
        let making = state.clone();
        tokio::task::spawn_blocking(move || drop(remote(vec![link], worker, mode).unwrap())).await.unwrap();
        let identity = Identity {
            job: config().job,
            secret: config().secret,
            rank: 0,
            incarnation: openfleet_core::topology::Incarnation(1),
        };
        let mut chance = Random(round as u64);
        for _ in 0..60 {
            let (mut stream, served) = open(&making);
            introduce(&mut stream, &identity, PEER).await.unwrap();
            let mut sent = 0;
            for _ in 0..40 {
                let kind = Kind::ALL[chance.below(Kind::ALL.len() as u64) as usize] as u16;
                let kind = if chance.happens(5) { chance.draw() as u16 } else { kind };
                let payload = match chance.below(3) {
                    0 => (0..chance.below(200)).map(|_| chance.draw() as u8).collect(),
                    1 if kind == Kind::CreateTables as u16 => tables(&mut chance),
                    _ => words(&mut chance),
                };
                sent += 1;
                if write_frame(&mut stream, kind, sent, &payload, PEER).await.is_err() {
                    break;
                }
            }
            stream.shutdown().await.unwrap();
            while let Ok(Some(answer)) = read_frame(&mut stream, 1 << 30, PEER).await {
                assert!(answer.kind == FAILED || answer.kind & REPLY != 0);
                assert!(answer.request <= sent);
            }
            served.await.expect("a server never panics");
        }
        let _ = state.status();
        assert!(state.status().connected.is_empty());
    }
}

/// A description of tables with one letter changed, or with absurd numbers.
fn tables(chance: &mut Random) -> Vec<u8> {
    let numbers = [0, 1, 2, 1 << 20, u64::from(u32::MAX), u64::MAX];
    let mut number = || numbers[chance.below(6) as usize];
    let text = format!(
        r#"{{"mode":"sync","workers":{},"threads":{},"sparse":[],"dense":[["a",{{"shape":[{},{}]}}]]}}"#,
        number(),
        number(),
        number(),
        number()
    );
    let mut text = text.into_bytes();
    let at = chance.below(text.len() as u64) as usize;
    text[at] = chance.draw() as u8;
    let mut payload = Payload::new();
    payload.put(&[text.len() as u64]);
    payload.put(&text);
    payload.bytes().to_vec()
}

/// Requests of a few bytes that would be expensive if they were trusted.
#[test]
fn small_requests_cannot_ask_for_endless_work() {
    use openfleet_dist::pull::PullEncoder;
    use openfleet_dist::request::Request;
    use openfleet_dist::request::create_tables::{CreateTables, Description};
    use openfleet_dist::request::pull_dense::PullDense;
    use openfleet_dist::server::Outcome;
    let state = Arc::new(State::new());
    let handle = |kind, payload| match state.handle(0, kind, payload) {
        Outcome::Now(answer) => answer,
        Outcome::Later(_) => panic!("nobody to wait for"),
    };
    for (workers, threads) in [(u32::MAX, u32::MAX), (u32::MAX, 1), (0, 1), (1, 0)] {
        let (mode, share) = (Mode::HalfAsync, Default::default());
        let description = Description { mode, workers, threads, sparse: vec![], dense: vec![], share };
        let create = CreateTables { description, first_values: vec![] };
        assert!(matches!(handle(Kind::CreateTables, create.encode().unwrap()), Err(Error::Streams { .. })));
    }
    let link = Link::in_process("here", state.clone(), 0);
    remote(vec![link], Worker { rank: 0, count: 1, threads: 1 }, Mode::Async).unwrap();
    let (tables, keys) = (vec![0; 1 << 14], vec![5; 1 << 15]);
    let mut pull = PullEncoder::new(openfleet_table::Missing::Initial, 0, 1);
    pull.stage(&tables, &vec![1; tables.len()], &keys);
    assert!(matches!(handle(Kind::PullSparse, pull.finish()), Err(Error::TooLong { .. })));
    let pull = PullDense { blocks: vec![7; 100] };
    assert!(matches!(handle(Kind::PullDense, pull.encode().unwrap()), Err(Error::UnknownTable { table: 7, count: 1 })));
}
