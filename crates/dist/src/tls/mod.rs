//! TLS under a connection, where a job is configured for it: what travels can then be neither read nor changed on the way.
//!
//! It stands below the handshake and does not replace it: a certificate says which machine answers, the job's secret says
//! that a process belongs to the job, and both are asked for. Whether this build can do it is the feature `tls`; without it
//! the same functions answer with an error.

#[cfg_attr(feature = "tls", path = "enabled.rs")]
#[cfg_attr(not(feature = "tls"), path = "disabled.rs")]
mod chosen;

use std::path::PathBuf;

use crate::error::{Error, Result};

pub use chosen::{Acceptor, Connector};

/// What a server shows of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// A PEM file: its certificate, then those that lead to the authority, if there are any.
    pub certificates: PathBuf,
    /// A PEM file: the certificate's private key.
    pub key: PathBuf,
}

/// Whom a worker trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// A PEM file: the certificates of the authorities that sign servers' certificates. The system's are not asked.
    pub authorities: PathBuf,
}

/// The first byte of whoever wants to speak TLS.
pub(crate) const HELLO: u8 = 0x16;

/// A TLS alert (handshake failure) for somebody who expects TLS where there is none: it then knows that it need not try
/// again.
pub(crate) const REFUSAL: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 40];

/// Whether the beginning of a frame is that of TLS.
pub(crate) fn is_hello(error: &Error) -> bool {
    matches!(error, Error::NotOurs { got } if got.to_le_bytes()[..2] == [HELLO, 3])
}

/// What a job's configuration asks for, made ready.
pub(crate) fn ready<C, T>(config: &Option<C>, make: impl FnOnce(&C) -> Result<T>) -> Result<Option<T>> {
    config.as_ref().map(make).transpose()
}
