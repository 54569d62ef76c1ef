//! Stand-in for a build without TLS: configuring TLS is an error.

use super::{ClientTls, ServerTls};
use crate::error::{Error, Result};
use crate::net::Stream;

/// The server side; it cannot be constructed.
#[derive(Clone)]
pub struct Acceptor(std::convert::Infallible);

impl Acceptor {
    /// Always fails.
    pub fn new(_: &ServerTls) -> Result<Self> {
        Err(Error::NoTls)
    }

    /// Never called.
    pub async fn accept<S: Stream>(&self, _: S) -> std::io::Result<S> {
        match self.0 {}
    }
}

/// The client side; it cannot be constructed.
#[derive(Clone)]
pub struct Connector(std::convert::Infallible);

impl Connector {
    /// Always fails.
    pub fn new(_: &ClientTls) -> Result<Self> {
        Err(Error::NoTls)
    }

    /// Never called.
    pub async fn connect<S: Stream>(&self, _: &str, _: S, _: &str) -> Result<S> {
        match self.0 {}
    }
}
