//! Accepts connections, and closes those that use up a slot without sending requests.
//!
//! Without limits, clients that do nothing can take a server down: each open connection costs a file descriptor, and when none
//! is left, health checks fail too and a load balancer ends a server that works. So there is a time limit on each thing a
//! client may be slow at, and a limit on the number of connections:
//!
//! ```text
//! accepted -> Header --request complete--> Request --answered--> Idle --a byte--> Header
//!               |                             |                    |
//!         header limit               body limit (in mod.rs)    idle limit         then the connection is closed
//! ```
//!
//! - Up to `max_connections` connections are *ordinary*: they may request anything.
//! - One more closes the ordinary connection that has been idle longest, and takes its slot.
//! - If all of them are busy, the new one is *over the limit*: it gets answers to health checks and metrics, `503` for anything
//!   else, and is closed after one response. There are up to `RESERVE` of these; the next closes the one that has waited
//!   longest.
//!
//! This module knows bytes, times and counts. The protocols know what a health check is.

use std::collections::HashMap;
use std::io::{IoSlice, Result};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::options::Limits;

/// Connections over the limit: enough for simultaneous health checks, and few enough to fit under the usual limit of 1,024 open
/// files together with the default of `max_connections`.
const RESERVE: usize = 32;

/// How long an ordinary connection must have been idle before a new one may take its slot. Clients that send request after
/// request on one connection pause for less.
const MIN_IDLE: Duration = Duration::from_secs(1);

/// How long a connection that was asked to close may take to send its remaining bytes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause before accepting again after the system had no file descriptor left.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// What a request may ask for; stored in its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Everything,
    /// The connection is over the limit: health checks only, then it closes.
    HealthOnly,
}

/// Serves connections until `stopped`; then closes the listener and completes the requests in flight.
pub(super) async fn run(listener: TcpListener, router: Router, limits: Limits, stopped: impl Future<Output = ()>) {
    let connections = Arc::new(Connections { limits, open: Mutex::default() });
    let router = TowerToHyperService::new(router);
    // Every connection holds a receiver: it signals the end to them, and all connections have ended when all receivers are
    // dropped.
    let (end, ended) = watch::channel(());
    let mut stopped = pin!(stopped);
    loop {
        let stream = tokio::select! {
            () = &mut stopped => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) if is_of_one_connection(&error) => continue,
                // Most likely there is no file descriptor left. Close an idle connection to free one.
                Err(_) => {
                    connections.open.lock().close_longest(Class::Ordinary, Duration::ZERO);
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
            },
        };
        // Write responses at once. A socket that refuses the option still works.
        drop(stream.set_nodelay(true));
        if let Some(guard) = connections.admit() {
            tokio::spawn(serve_connection(stream, guard, router.clone(), ended.clone()));
        }
    }
    drop((listener, ended));
    end.send_replace(());
    end.closed().await;
}

/// Whether the error concerns one connection and not the listener.
fn is_of_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Serves one connection until it ends or is closed.
async fn serve_connection(
    stream: TcpStream,
    guard: ConnectionGuard,
    router: TowerToHyperService<Router>,
    mut ended: watch::Receiver<()>,
) {
    let connection_state = guard.connection_state.clone();
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(guard.begin());
        let (answer, connection_state) = (router.call(request), connection_state.clone());
        async move {
            let answer = answer.await;
            connection_state.answered();
            answer
        }
    });
    let io = TokioIo::new(TrackedStream { stream, connection_state: connection_state.clone() });
    // No timer for hyper: its header timeout would also close idle connections.
    let mut connection = pin!(http1::Builder::new().header_read_timeout(None).serve_connection(io, service));
    let (mut limits, mut is_ending) = (guard.connections.limits.clone(), false);
    loop {
        tokio::select! {
            // A broken connection is the client's problem.
            _ = connection.as_mut() => return,
            () = connection_state.close.notified() => {
                connection.as_mut().graceful_shutdown();
                drop(timeout(CLOSE_TIMEOUT, connection.as_mut()).await);
                return;
            }
            () = sleep_until(connection_state.next_check(&limits)) => {
                if connection_state.is_late(&limits) {
                    return;
                }
            }
            _ = ended.changed(), if !is_ending => {
                is_ending = true;
                // An incomplete header is not a request in flight.
                limits.header = limits.header.min(CLOSE_TIMEOUT);
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// All connections of the server.
struct Connections {
    limits: Limits,
    open: Mutex<OpenConnections>,
}

#[derive(Default)]
struct OpenConnections {
    /// The next connection number. Numbers are not reused.
    next: u64,
    states: HashMap<u64, Arc<ConnectionState>>,
    ordinary: usize,
}

/// Removes the connection from the list on drop. Lock order: `open`, then `state` of a connection.
struct ConnectionGuard {
    connections: Arc<Connections>,
    number: u64,
    connection_state: Arc<ConnectionState>,
}

/// The state of one connection, shared with its stream.
struct ConnectionState {
    state: Mutex<State>,
    /// Requests the connection to close.
    close: Notify,
}

struct State {
    class: Class,
    phase: Phase,
    /// When the phase began, or when the client last read bytes of a response.
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Ordinary,
    OverLimit,
    /// It was asked to close, and no longer counts.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Header,
    Request,
    Idle,
}

impl Connections {
    /// Admits a new connection; `None` if all are busy, those over the limit too.
    fn admit(self: &Arc<Self>) -> Option<ConnectionGuard> {
        let mut open = self.open.lock();
        let class = if open.ordinary < self.limits.max_connections || open.close_longest(Class::Ordinary, MIN_IDLE) {
            open.ordinary += 1;
            Class::Ordinary
        } else if open.states.len() - open.ordinary < RESERVE || open.close_longest(Class::OverLimit, Duration::ZERO) {
            Class::OverLimit
        } else {
            return None;
        };
        let state = Mutex::new(State { class, phase: Phase::Header, since: Instant::now() });
        let connection_state = Arc::new(ConnectionState { state, close: Notify::new() });
        let number = open.next;
        open.next += 1;
        open.states.insert(number, connection_state.clone());
        drop(open);
        Some(ConnectionGuard { connections: self.clone(), number, connection_state })
    }
}

impl OpenConnections {
    /// Closes the connection of a class that has been without a request for longest, idle ones before those that have sent a
    /// part of a header. Returns false if none has been for at least `min_idle`.
    fn close_longest(&mut self, class: Class, min_idle: Duration) -> bool {
        let now = Instant::now();
        let waiting = self.states.iter().filter_map(|(&number, connection_state)| {
            let state = connection_state.state.lock();
            let is_waiting = state.class == class && state.phase != Phase::Request && now - state.since >= min_idle;
            is_waiting.then_some((state.phase != Phase::Idle, state.since, number))
        });
        let Some((.., number)) = waiting.min() else { return false };
        let Some(connection_state) = self.states.get(&number).cloned() else { return false };
        // Its request may have arrived just now.
        let mut state = connection_state.state.lock();
        if state.phase == Phase::Request {
            return false;
        }
        self.states.remove(&number);
        // `begin` refuses a request that arrives from now on.
        state.class = Class::Closed;
        self.ordinary -= usize::from(class == Class::Ordinary);
        connection_state.close.notify_one();
        true
    }
}

impl ConnectionGuard {
    /// A request's header is complete.
    fn begin(&self) -> Admission {
        let class = {
            let mut state = self.connection_state.state.lock();
            (state.phase, state.since) = (Phase::Request, Instant::now());
            state.class
        };
        match class {
            Class::Ordinary => return Admission::Everything,
            Class::Closed => return Admission::HealthOnly,
            Class::OverLimit => {}
        }
        // Another connection may have ended since this one was admitted. Only its own requests, one at a time, make it
        // ordinary; while busy it is not closed.
        let mut open = self.connections.open.lock();
        if open.ordinary >= self.connections.limits.max_connections {
            return Admission::HealthOnly;
        }
        self.connection_state.state.lock().class = Class::Ordinary;
        open.ordinary += 1;
        Admission::Everything
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        if let Some(connection_state) = open.states.remove(&self.number) {
            open.ordinary -= usize::from(connection_state.state.lock().class == Class::Ordinary);
        }
    }
}

impl ConnectionState {
    /// The response is ready; it is being sent until no more bytes are written.
    fn answered(&self) {
        let mut state = self.state.lock();
        (state.phase, state.since) = (Phase::Idle, Instant::now());
    }

    fn read(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Idle {
            (state.phase, state.since) = (Phase::Header, Instant::now());
        }
    }

    fn wrote(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Idle {
            state.since = Instant::now();
        }
    }

    fn deadline(&self, limits: &Limits) -> Option<Instant> {
        let state = self.state.lock();
        match state.phase {
            Phase::Header => state.since.checked_add(limits.header),
            Phase::Idle => state.since.checked_add(limits.idle),
            Phase::Request => None,
        }
    }

    fn is_late(&self, limits: &Limits) -> bool {
        self.deadline(limits).is_some_and(|deadline| deadline <= Instant::now())
    }

    /// When to check `is_late` next. The phase may change before, so it is at most the shorter limit from now.
    fn next_check(&self, limits: &Limits) -> Instant {
        let soon = limits.header.min(limits.idle);
        let soon = Instant::now().checked_add(soon).unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
        self.deadline(limits).map_or(soon, |deadline| deadline.min(soon))
    }
}

/// A socket that records in its connection state when bytes move.
struct TrackedStream {
    stream: TcpStream,
    connection_state: Arc<ConnectionState>,
}

impl AsyncRead for TrackedStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.connection_state.read();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.connection_state.wrote();
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, parts))?;
        self.connection_state.wrote();
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
