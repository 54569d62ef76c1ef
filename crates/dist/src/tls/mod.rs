//! TLS below a connection, if the job is configured for it: traffic can then be neither read nor changed on the way.
//!
//! It does not replace the handshake: a certificate proves which machine answers, the job's secret proves that a process
//! belongs to the job, and both are checked. The feature `tls` enables it; without the feature, the same functions return an
//! error.

#[cfg_attr(feature = "tls", path = "enabled.rs")]
#[cfg_attr(not(feature = "tls"), path = "disabled.rs")]
mod chosen;

use std::path::PathBuf;

use crate::error::{Error, Result};

pub use chosen::{Acceptor, Connector};

/// The certificate of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// A PEM file: its certificate, followed by intermediate certificates, if any.
    pub certificates: PathBuf,
    /// A PEM file: the certificate's private key.
    pub key: PathBuf,
}

/// What a worker trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// A PEM file: the certificates of the authorities that sign servers' certificates. The system's authorities are not used.
    pub authorities: PathBuf,
}

/// The first byte of a TLS connection.
pub(crate) const HELLO: u8 = 0x16;

/// A TLS alert (handshake failure) for a client that tries TLS on a server without it: the client then knows that retrying is
/// useless.
pub(crate) const REFUSAL: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 40];

/// Whether a peer began with a TLS hello instead of a frame.
pub(crate) fn is_hello(error: &Error) -> bool {
    matches!(error, Error::NotOurs { got } if got.to_le_bytes()[..2] == [HELLO, 3])
}

/// Creates the TLS side of a configuration, if there is one.
pub(crate) fn ready<C, T>(config: &Option<C>, make: impl FnOnce(&C) -> Result<T>) -> Result<Option<T>> {
    config.as_ref().map(make).transpose()
}
