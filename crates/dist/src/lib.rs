//! Movement: how a worker's pulls and pushes reach the tables.
//!
//! A worker stages what it wants to read and what it has computed ([`stage`]), and hands the stages to a
//! [`Communicator`]; whether the tables stand in the same process or on a hundred servers is the communicator's affair.
//! From the socket up: [`tls`] where it is wanted, [`frame`] (bytes), [`net`] (frames over a stream), [`handshake`] and [`session`] (who is there),
//! [`server`] (tables and who waits for whom, without sockets), [`request`] (what can be asked of one), [`listener`] (a server
//! behind a socket) and [`client`]. This crate knows no models and no programs.

pub mod client;
mod cluster;
pub mod communicator;
mod error;
mod floats;
pub mod frame;
pub mod gradients;
pub mod handshake;
pub mod listener;
pub mod net;
pub mod notices;
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
