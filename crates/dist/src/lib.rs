//! Distributed training: how a worker's pulls and pushes reach the tables.
//!
//! A worker stages what it wants to read and what it has computed ([`stage`]), and passes the stages to a [`Communicator`].
//! Whether the tables are in the same process or on a hundred servers is up to the communicator.
//!
//! From the socket up: [`tls`] if configured, [`frame`] (bytes), [`net`] (frames over a stream), [`handshake`] and [`session`]
//! (authentication), [`server`] (tables and coordination, without sockets), [`request`] (one file per request), [`listener`] (a
//! server behind a socket) and [`client`]. [`gradients`] and [`pull`] have the bytes of pushes and pulls, and [`message_sizes`] tells
//! how many there are in a batch. This crate knows no models and no programs.

pub mod client;
mod cluster;
pub mod collective;
pub mod communicator;
mod error;
mod floats;
pub mod frame;
pub mod gradients;
pub mod handshake;
pub mod listener;
pub mod message_sizes;
pub mod missing_peers;
pub mod net;
pub mod pull;
pub mod request;
pub mod server;
pub mod session;
pub mod stage;
pub mod storage;
pub mod threads;
pub mod tls;

pub use client::{ClientConfig, Link};
pub use cluster::{Cluster, LoadOptions, SaveOptions, ScriptAction, fresh_save_id};
pub use communicator::Communicator;
pub use error::{Error, Result};
pub use listener::{Reach, Server, ServerConfig, reach};
pub use server::{Reduce, Resume, Shrink, State, Status};
