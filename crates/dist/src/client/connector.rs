//! Opening a byte stream to a server: TCP, or the simulated network of a test.

use std::future::Future;
use std::pin::Pin;

use openfleet_core::topology::Endpoint;
use tokio::net::TcpStream;

use crate::net::Stream;

/// A stream of any type.
pub type BoxedStream = Box<dyn StreamObject>;

/// [`Stream`] as a trait object.
pub trait StreamObject: Stream {}
impl<T: Stream> StreamObject for T {}

/// Opens connections: TCP, or a simulated network in a test.
pub trait Connector: Send + Sync + 'static {
    /// Makes one attempt to connect. Host names are resolved on every attempt.
    fn connect(&self, endpoint: &Endpoint) -> Pin<Box<dyn Future<Output = std::io::Result<BoxedStream>> + Send>>;
}

/// TCP with `TCP_NODELAY`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Connector for Tcp {
    fn connect(&self, endpoint: &Endpoint) -> Pin<Box<dyn Future<Output = std::io::Result<BoxedStream>> + Send>> {
        let (host, port) = (endpoint.host().to_owned(), endpoint.port());
        Box::pin(async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as BoxedStream)
        })
    }
}
