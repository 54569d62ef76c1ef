//! The server: keeps tables and answers requests.
//!
//! [`State`] is the whole of it without sockets: requests in, answers out, from as many threads as like. [`Server`] puts
//! it behind a listener. Tests and the embedded default talk to a `State` directly.

mod collective;
mod copies;
mod group;
mod listener;
mod saving;
mod state;

pub(crate) use collective::Brought;
pub use listener::{Goodbye, Server, ServerConfig, serve};
pub use state::{Outcome, State};
