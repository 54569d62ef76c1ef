//! The worker's side of its servers: sends requests, waits for replies, retries.
//!
//! A [`Link`] is one server as a worker sees it. A remote link has a task that keeps a connection open and sends requests as
//! they come, many in flight. When the connection breaks, the task reconnects and resends every request without a reply. That
//! is always safe, because a server applies each piece of work once. Every request has a deadline. On slow links, large requests go
//! over a second connection, so that small ones do not wait behind them. A link to a
//! [`State`](crate::server::State) in this process replies at once, without a socket.

mod config;
mod connection;
mod connector;
mod link;
mod unanswered;

pub use config::ClientConfig;
pub use connector::{BoxedStream, Connector, StreamObject, Tcp};
pub use link::{Link, Pending, Traffic};
