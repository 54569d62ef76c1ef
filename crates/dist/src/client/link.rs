//! [`Link`]: the handle through which a worker sends requests to one server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use openfleet_core::topology::Endpoint;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::config::{ClientConfig, DEADLINE, PATIENCE};
use super::connection::keep_connected;
use super::connector::Connector;
use super::unanswered::Outgoing;
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::request::{Kind, Numbered};
use crate::server::{Outcome, State};

/// One server as a worker sees it.
#[derive(Clone)]
pub struct Link {
    name: Arc<str>,
    route: Route,
    traffic: Arc<Traffic>,
    deadline: Duration,
    patience: Duration,
}

#[derive(Clone)]
enum Route {
    Remote {
        requests: mpsc::UnboundedSender<Outgoing>,
        /// A second connection; see [`Link::send_payload_apart`].
        apart: Arc<SecondConnection>,
        abandoned: watch::Sender<bool>,
        /// Maximum payload that a server accepts, in bytes.
        cap: u64,
    },
    InProcess {
        state: Arc<State>,
        rank: u32,
    },
}

/// A connection that is opened when it is first used: most jobs never use it.
struct SecondConnection {
    requests: OnceLock<mpsc::UnboundedSender<Outgoing>>,
    open: Box<dyn Fn() -> mpsc::UnboundedSender<Outgoing> + Send + Sync>,
}

/// Payload bytes that a link has sent and received, without headers.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Bytes sent to the server.
    pub sent: AtomicU64,
    /// Bytes received from the server.
    pub received: AtomicU64,
}

/// A request in flight.
pub struct Pending {
    name: Arc<str>,
    traffic: Arc<Traffic>,
    receiver: oneshot::Receiver<Result<Payload>>,
}

impl Pending {
    /// Blocks until the reply arrives. Must not be called on a thread of the runtime.
    pub fn wait(self) -> Result<Payload> {
        let answer = self.receiver.blocking_recv();
        finish(answer, &self.name, &self.traffic)
    }

    /// Waits for the reply in a task.
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
    /// A link to a server in another process. Its task runs on `runtime`, which must outlive the link.
    pub fn remote(
        runtime: &tokio::runtime::Handle,
        endpoint: Endpoint,
        config: ClientConfig,
        connector: Arc<dyn Connector>,
    ) -> Self {
        let (name, deadline, patience) = (endpoint.to_string().into(), config.deadline, config.patience);
        let (abandoned, abandonment) = watch::channel(false);
        let (cap, runtime, instance) = (config.cap, runtime.clone(), Arc::default());
        let open = move || {
            let (sender, receiver) = mpsc::unbounded_channel();
            let (endpoint, config, connector) = (endpoint.clone(), config.clone(), connector.clone());
            let (abandonment, instance) = (abandonment.clone(), Arc::clone(&instance));
            runtime.spawn(keep_connected(endpoint, config, connector, receiver, abandonment, instance));
            sender
        };
        let requests = open();
        let apart = Arc::new(SecondConnection { requests: OnceLock::new(), open: Box::new(open) });
        let route = Route::Remote { requests, apart, abandoned, cap };
        Link { name, route, traffic: Arc::default(), deadline, patience }
    }

    /// A link to a server in this process.
    pub fn in_process(name: &str, state: Arc<State>, rank: u32) -> Self {
        let route = Route::InProcess { state, rank };
        Link { name: name.into(), route, traffic: Arc::default(), deadline: DEADLINE, patience: PATIENCE }
    }

    /// The server's name in messages: its endpoint.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes sent and received so far.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Sends a request that fails with [`Error::Deadline`] if there is no reply within the given time.
    pub fn send_within<R: Numbered>(&self, request: &R, within: Duration) -> Result<Pending> {
        Ok(self.send_payload_within(R::KIND, request.encode()?, within))
    }

    /// Sends a request with the ordinary time limit ([`ClientConfig::deadline`]).
    pub fn send<R: Numbered>(&self, request: &R) -> Result<Pending> {
        self.send_within(request, self.deadline)
    }

    /// Sends a request with the longer time limit ([`ClientConfig::patience`]), because it waits for other workers.
    pub fn send_patiently<R: Numbered>(&self, request: &R) -> Result<Pending> {
        self.send_within(request, self.patience)
    }

    /// Sends an encoded request with the ordinary time limit.
    pub fn send_payload(&self, kind: Kind, payload: Payload) -> Pending {
        self.send_payload_within(kind, payload, self.deadline)
    }

    /// Sends a large request over a second connection with the ordinary time limit. Requests that are sent later do not wait
    /// behind it, so they may overtake it.
    pub fn send_payload_apart(&self, kind: Kind, payload: Payload) -> Pending {
        self.send_over(true, kind, payload, self.deadline)
    }

    /// Sends an encoded request with the longer time limit, because it waits for other workers.
    pub fn send_payload_patiently(&self, kind: Kind, payload: Payload) -> Pending {
        self.send_payload_within(kind, payload, self.patience)
    }

    /// Fails every request in flight and every later one: this process is shutting down, and its threads must not wait for
    /// replies that will not come. A server in this process is told instead that the worker departs, because nothing could
    /// restart the worker.
    pub fn abandon(&self, workers: u32) {
        match &self.route {
            Route::Remote { abandoned, .. } => {
                abandoned.send_replace(true);
            }
            Route::InProcess { state, rank } => drop(state.depart(*rank, workers)),
        }
    }

    /// Sends an encoded request that fails with [`Error::Deadline`] if there is no reply within the given time.
    pub fn send_payload_within(&self, kind: Kind, payload: Payload, within: Duration) -> Pending {
        self.send_over(false, kind, payload, within)
    }

    fn send_over(&self, is_apart: bool, kind: Kind, payload: Payload, within: Duration) -> Pending {
        self.traffic.sent.fetch_add(payload.bytes().len() as u64, Ordering::Relaxed);
        let (answer, receiver) = oneshot::channel();
        let pending = |receiver| Pending { name: self.name.clone(), traffic: self.traffic.clone(), receiver };
        match &self.route {
            Route::InProcess { state, rank } => match state.handle(*rank, kind, payload) {
                Outcome::Now(result) => {
                    let _ = answer.send(result);
                    pending(receiver)
                }
                Outcome::Later(receiver) => pending(receiver),
            },
            // The server would disconnect at every attempt.
            Route::Remote { cap, .. } if payload.bytes().len() as u64 > *cap => {
                let _ = answer.send(Err(Error::TooLong { length: payload.bytes().len() as u64, cap: *cap }));
                pending(receiver)
            }
            Route::Remote { requests, apart, .. } => {
                let outgoing =
                    Outgoing { kind, payload, deadline: Instant::now() + within, waited: within, told: 0, answer };
                let requests = if is_apart { apart.requests.get_or_init(&apart.open) } else { requests };
                // If the channel is closed, the request is dropped, and `wait` reports that the link is closed.
                let _ = requests.send(outgoing);
                pending(receiver)
            }
        }
    }
}
