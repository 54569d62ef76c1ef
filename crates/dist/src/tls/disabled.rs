//! TLS in a build without it: whoever configures it hears so at once.

use super::{ClientTls, ServerTls};
use crate::error::{Error, Result};
use crate::net::Stream;

/// The server's half; there is none.
#[derive(Clone)]
pub struct Acceptor(std::convert::Infallible);

impl Acceptor {
    /// Fails.
    pub fn new(_: &ServerTls) -> Result<Self> {
        Err(Error::NoTls)
    }

    /// Nobody gets here.
    pub async fn accept<S: Stream>(&self, _: S) -> std::io::Result<S> {
        match self.0 {}
    }
}

/// The worker's half; there is none.
#[derive(Clone)]
pub struct Connector(std::convert::Infallible);

impl Connector {
    /// Fails.
    pub fn new(_: &ClientTls) -> Result<Self> {
        Err(Error::NoTls)
    }

    /// Nobody gets here.
    pub async fn connect<S: Stream>(&self, _: &str, _: S, _: &str) -> Result<S> {
        match self.0 {}
    }
}
