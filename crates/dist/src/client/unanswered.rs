//! Requests of one link that have no reply yet, and what becomes of them: a reply, a deadline, or a permanent failure.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::info;

use super::connection::Ended;
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::net::Frame;
use crate::request::{FAILED, Kind, RECALLED, REPLY};

/// A request that waits longer than this is logged, and logged again each time this much more time has passed.
const LONG: Duration = Duration::from_secs(30);

/// Interval between two checks for expired requests.
pub(super) const EXPIRY: Duration = Duration::from_millis(100);

/// A request with its deadline and the channel for its reply.
pub(super) struct Outgoing {
    pub(super) kind: Kind,
    pub(super) payload: Payload,
    pub(super) deadline: Instant,
    /// Its whole time limit, which ends at `deadline`.
    pub(super) waited: Duration,
    /// How many log messages have said that it waits.
    pub(super) told: u32,
    pub(super) answer: oneshot::Sender<Result<Payload>>,
}

/// Requests without a reply, sent or not yet sent, in order of their numbers.
pub(super) struct Unanswered {
    pub(super) requests: BTreeMap<u64, Outgoing>,
    next: u64,
    pub(super) endpoint: String,
    rank: u32,
}

impl Unanswered {
    pub(super) fn new(endpoint: String, rank: u32) -> Self {
        Unanswered { requests: BTreeMap::new(), next: 1, endpoint, rank }
    }

    pub(super) fn add(&mut self, outgoing: Outgoing) -> u64 {
        let request = self.next;
        self.next += 1;
        self.requests.insert(request, outgoing);
        request
    }

    /// Delivers a reply. A reply to an unknown request is a duplicate and ignored.
    pub(super) fn answer(&mut self, frame: Frame) {
        let Some(outgoing) = self.requests.remove(&frame.request) else { return };
        let answer = if frame.kind == outgoing.kind as u16 | REPLY {
            Ok(frame.payload)
        } else if frame.kind == RECALLED {
            Err(Error::Recalled { rank: self.rank })
        } else if frame.kind == FAILED {
            let message = String::from_utf8_lossy(frame.payload.bytes()).into_owned();
            Err(Error::Server { endpoint: self.endpoint.clone(), request: outgoing.kind.name(), message })
        } else {
            Err(Error::UnknownKind { kind: frame.kind })
        };
        let _ = outgoing.answer.send(answer);
    }

    /// Fails requests past their deadline, and logs those that have waited long.
    pub(super) fn expire(&mut self) {
        let now = Instant::now();
        for outgoing in self.requests.values_mut() {
            let waited = outgoing.waited.saturating_sub(outgoing.deadline.saturating_duration_since(now));
            if waited >= LONG * (outgoing.told + 1) && waited < outgoing.waited {
                outgoing.told += 1;
                info!(
                    "server {} has not answered `{}` for {} s; the limit is {} s",
                    self.endpoint,
                    outgoing.kind.name(),
                    waited.as_secs(),
                    outgoing.waited.as_secs()
                );
            }
        }
        let late: Vec<u64> =
            self.requests.iter().filter(|(_, outgoing)| outgoing.deadline <= now).map(|(&id, _)| id).collect();
        for id in late {
            if let Some(outgoing) = self.requests.remove(&id) {
                let _ = outgoing.answer.send(Err(Error::Deadline {
                    endpoint: self.endpoint.clone(),
                    request: outgoing.kind.name(),
                    waited: outgoing.waited,
                }));
            }
        }
    }

    /// While there is no connection: accepts new requests and fails expired ones. Returns when the link was dropped and no
    /// request is left.
    pub(super) async fn expire_while_waiting(&mut self, requests: &mut mpsc::UnboundedReceiver<Outgoing>) {
        let mut closed = false;
        loop {
            self.expire();
            if closed && self.requests.is_empty() {
                return;
            }
            tokio::select! {
                outgoing = requests.recv(), if !closed => match outgoing {
                    Some(outgoing) => {
                        self.add(outgoing);
                    }
                    None => closed = true,
                },
                () = tokio::time::sleep(EXPIRY) => {}
            }
        }
    }

    /// The link was dropped: waits for the last replies.
    pub(super) async fn drain(&mut self, incoming: &mut mpsc::UnboundedReceiver<Result<Option<Frame>>>) -> Ended {
        while !self.requests.is_empty() {
            self.expire();
            match tokio::time::timeout(EXPIRY, incoming.recv()).await {
                Ok(Some(Ok(Some(frame)))) => self.answer(frame),
                Ok(_) => return Ended::Broken,
                Err(_) => {}
            }
        }
        Ended::NotNeeded
    }

    /// The failure is permanent: fails all requests, now and later.
    pub(super) async fn fail_all(&mut self, requests: &mut mpsc::UnboundedReceiver<Outgoing>, error: Error) {
        let message = openfleet_core::error::report(&error);
        let recalled = error.recalled();
        let refuse = |outgoing: Outgoing, endpoint: &str| {
            let endpoint = endpoint.to_owned();
            let refusal = match recalled {
                Some(rank) => Error::Recalled { rank },
                None => Error::Server { endpoint, request: outgoing.kind.name(), message: message.clone() },
            };
            let _ = outgoing.answer.send(Err(refusal));
        };
        let waiting = std::mem::take(&mut self.requests);
        waiting.into_values().for_each(|outgoing| refuse(outgoing, &self.endpoint));
        while let Some(outgoing) = requests.recv().await {
            refuse(outgoing, &self.endpoint);
        }
    }
}
