//! How a model is served, and the limits on connections.

use std::net::SocketAddr;
use std::time::Duration;

/// How a model is served.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The name of the model in URLs.
    pub name: String,
    /// The address to listen on; port 0 chooses a free port.
    pub listen: SocketAddr,
    /// Threads that compute predictions.
    pub threads: usize,
    /// The largest body of a request, in bytes.
    pub max_body: usize,
    /// The most rows of a request: memory grows with them, however few bytes they take in the request.
    pub max_rows: usize,
    /// Limits on connections and their times.
    pub limits: Limits,
}

/// Limits on the number of connections and on the time each may take.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Connections that may request predictions.
    pub max_connections: usize,
    /// From the first byte of a request, or from connecting, to the end of its header.
    pub header: Duration,
    /// From the end of a request's header to the end of its body.
    pub body: Duration,
    /// Without a request, or without the client reading more of its response.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_connections: 512,
            header: Duration::from_secs(10),
            body: Duration::from_secs(60),
            // Longer than the minute that load balancers keep idle connections, so that the load balancer is the one to close.
            idle: Duration::from_secs(120),
        }
    }
}
