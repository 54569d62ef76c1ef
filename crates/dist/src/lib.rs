//! Movement: how a worker's pulls and pushes reach the tables.
//!
//! A worker stages what it wants to read and what it has computed ([`stage`]), and hands the stages to a
//! [`Communicator`]; whether the tables stand in the same process or on a hundred servers is the communicator's affair.
//! From the socket up: [`tls`] where it is wanted, [`frame`] (bytes), [`net`] (frames over a stream), [`handshake`] and [`session`] (who is there),
//! [`request`] (what can be asked), [`server`] and [`client`]. This room knows no models and no programs.

pub mod client;
pub mod cluster;
pub mod communicator;
pub mod error;
pub mod floats;
pub mod frame;
pub mod hands;
pub mod handshake;
pub mod net;
pub mod request;
pub mod server;
pub mod session;
pub mod stage;
pub mod storage;
pub mod tls;

pub use client::{ClientConfig, Link};
pub use cluster::{Cluster, LoadOptions, SaveOptions, fresh_save_id};
pub use communicator::Communicator;
pub use error::{Error, Result};
pub use request::all_reduce::Reduce;
pub use request::shrink::Shrink;
pub use request::status::Status;
pub use server::{Server, ServerConfig, State};
