//! Collective training: ranks that train together without servers.
//!
//! From the socket up: a [`Transport`] moves bytes between ranks ([`TcpTransport`] after a [`Rendezvous`], [`MpiTransport`] with
//! the feature `mpi`, [`InProcess`] for tests); the [`algorithms`] reduce and gather over any transport; a [`RankGroup`] runs
//! them in the order that all ranks agree on. The communicator that trains with a group is [`Replicated`](crate::communicator::Replicated).

pub mod algorithms;
mod call;
mod group;
#[cfg_attr(not(feature = "mpi"), path = "mpi_absent.rs")]
mod mpi;
mod progress;
mod rendezvous;
mod tcp;
mod transport;
mod watch;

pub use algorithms::Element;
pub use call::{Call, Turn};
pub(crate) use call::{any_is_new, participants, rate_factor};
pub use group::{Pending, RankGroup, Standby, StepOfOthers};
pub use mpi::MpiTransport;
pub use rendezvous::Rendezvous;
pub use tcp::TcpTransport;
pub use transport::{InProcess, Transport};
