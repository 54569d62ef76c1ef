//! The task behind a remote link: it connects, sends and receives, and reconnects when the connection breaks.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use openfleet_core::topology::Endpoint;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::config::ClientConfig;
use super::connector::{BoxedStream, Connector};
use super::unanswered::{EXPIRY, Outgoing, Unanswered};
use crate::error::{Error, Result};
use crate::frame::PayloadPool;
use crate::net::{Frame, LastSeen, Watched, read_pooled_frame, write_frame};
use crate::request::{Kind, heartbeat};
use crate::session::{HANDSHAKE, introduce};
use crate::tls;

/// Request number of heartbeats.
const HEARTBEAT: u64 = 0;

/// Why a connection ended.
pub(super) enum Ended {
    /// The link was dropped and every request has its reply.
    NotNeeded,
    /// The connection broke; reconnect.
    Broken,
}

/// `instance` is the server process that this worker talks to, once it is known; a different one has lost the tables.
pub(super) async fn keep_connected(
    endpoint: Endpoint,
    config: ClientConfig,
    connector: Arc<dyn Connector>,
    mut requests: mpsc::UnboundedReceiver<Outgoing>,
    mut abandonment: watch::Receiver<bool>,
    instance: Arc<OnceLock<u64>>,
) {
    let rank = config.identity.rank;
    let mut unanswered = Unanswered::new(endpoint.to_string(), rank);
    {
        let connected =
            keep_connected_until_refused(&endpoint, &config, connector, &mut requests, &mut unanswered, &instance);
        tokio::select! {
            () = connected => return,
            // An error means that the link was dropped: then no requests come, and the other branch ends.
            Ok(_) = abandonment.wait_for(|abandoned| *abandoned) => {}
        }
    }
    unanswered.fail_all(&mut requests, Error::Closed { endpoint: endpoint.to_string() }).await;
}

async fn keep_connected_until_refused(
    endpoint: &Endpoint,
    config: &ClientConfig,
    connector: Arc<dyn Connector>,
    requests: &mut mpsc::UnboundedReceiver<Outgoing>,
    unanswered: &mut Unanswered,
    instance: &OnceLock<u64>,
) {
    let tls = match tls::ready(&config.tls, tls::Connector::new) {
        Ok(tls) => tls,
        Err(error) => return unanswered.fail_all(requests, error).await,
    };
    let name = endpoint.to_string();
    let mut pause = config.shortest_pause;
    loop {
        let stream = tokio::select! {
            stream = connect(endpoint, config, connector.as_ref(), tls.as_ref()) => stream,
            () = unanswered.expire_while_waiting(requests) => return,
        };
        match stream {
            Ok((stream, welcomed)) => {
                debug!("connected to server {endpoint}");
                config.missing_peers.server_is_back(&name);
                if *instance.get_or_init(|| welcomed) != welcomed {
                    warn!("server {endpoint} was restarted and has lost its tables");
                    let rank = config.identity.rank;
                    return unanswered.fail_all(requests, Error::Recalled { rank }).await;
                }
                pause = config.shortest_pause;
                match converse(stream, config, requests, unanswered).await {
                    Ended::NotNeeded => return,
                    Ended::Broken => info!("the connection to server {endpoint} broke; reconnecting"),
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
                return unanswered.fail_all(requests, error).await;
            }
            Err(error) => debug!("server {endpoint} is not ready: {error}"),
        }
        if instance.get().is_some() {
            config.missing_peers.server_is_missing(&name);
        }
        tokio::select! {
            () = tokio::time::sleep(pause), if !pause.is_zero() => {}
            () = tokio::task::yield_now(), if pause.is_zero() => {}
            () = unanswered.expire_while_waiting(requests) => return,
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
    let instance =
        tokio::time::timeout(HANDSHAKE, introduce(&mut stream, &config.identity, &name)).await.map_err(late)??;
    Ok((stream, instance))
}

/// Sends requests and receives replies until the connection ends.
async fn converse(
    stream: BoxedStream,
    config: &ClientConfig,
    requests: &mut mpsc::UnboundedReceiver<Outgoing>,
    unanswered: &mut Unanswered,
) -> Ended {
    let name = unanswered.endpoint.clone();
    let (reader, writer) = tokio::io::split(stream);
    let heard = LastSeen::now();
    let mut writer = Writer::new(writer, config, heard.clone(), &name);
    let mut reader = Watched::new(reader, heard.clone());
    let (frames, mut incoming) = mpsc::unbounded_channel::<Result<Option<Frame>>>();
    let (cap, read_name) = (config.cap, name.clone());
    // Read while a large request is written: otherwise both sides could block on each other's full buffers.
    let reading = tokio::spawn(async move {
        let pool = PayloadPool::default();
        loop {
            let frame = read_pooled_frame(&mut reader, cap, &read_name, &pool).await;
            let more = matches!(frame, Ok(Some(_)));
            if frames.send(frame).is_err() || !more {
                return;
            }
        }
    });
    let _guard = AbortOnDrop(reading);
    for (&request, outgoing) in &unanswered.requests {
        if !writer.write(outgoing.kind, request, outgoing.payload.bytes()).await {
            return Ended::Broken;
        }
    }
    let mut heartbeat = tokio::time::interval(config.heartbeat);
    let mut look = tokio::time::interval(EXPIRY);
    loop {
        tokio::select! {
            outgoing = requests.recv() => {
                let Some(outgoing) = outgoing else {
                    if unanswered.requests.is_empty() {
                        return Ended::NotNeeded;
                    }
                    return unanswered.drain(&mut incoming).await;
                };
                let request = unanswered.add(outgoing);
                let outgoing = &unanswered.requests[&request];
                if !writer.write(outgoing.kind, request, outgoing.payload.bytes()).await {
                    return Ended::Broken;
                }
            }
            frame = incoming.recv() => match frame {
                Some(Ok(Some(frame))) if frame.request == HEARTBEAT => {
                    if let Ok(absent) = heartbeat::decode(frame.payload.bytes()) {
                        config.missing_peers.workers_are_missing(&name, &absent);
                    }
                }
                Some(Ok(Some(frame))) => unanswered.answer(frame),
                _ => return Ended::Broken,
            },
            _ = look.tick() => unanswered.expire(),
            _ = heartbeat.tick() => {
                let silent = heard.silent_for();
                if silent > config.silence.mul_f64(0.6) {
                    config.missing_peers.server_is_missing(&name);
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

/// The writing side. A write that makes no progress for `silence` fails; a slow write that makes progress does not.
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

    /// Returns whether the frame was written.
    async fn write(&mut self, kind: Kind, request: u64, payload: &[u8]) -> bool {
        let began = Instant::now();
        self.moved.note();
        let writing = write_frame(&mut self.to, kind as u16, request, payload, &self.name);
        let written = matches!(self.moved.unless_silent_for(self.silence, writing).await, Some(Ok(())));
        if written && began.elapsed() >= self.heartbeat {
            // No heartbeat was sent while this frame was written, so the server had nothing to reply to: it was not silent.
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
