//! Identity, TLS, time limits and payload limit of a worker's connections.

use std::sync::Arc;
use std::time::Duration;

use crate::missing_peers::MissingPeers;
use crate::session::Identity;
use crate::tls::ClientTls;

/// Default of [`ClientConfig::deadline`].
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// Default of [`ClientConfig::patience`].
pub(super) const PATIENCE: Duration = Duration::from_secs(900);

/// Settings of a worker's connections to its servers.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Job, rank, incarnation and secret of this worker.
    pub identity: Identity,
    /// The certificate authority to trust, if the servers use TLS.
    pub tls: Option<ClientTls>,
    /// Maximum payload of one message, in bytes.
    pub cap: u64,
    /// Time limit of an ordinary request, including reconnecting.
    pub deadline: Duration,
    /// Time limit of a request that waits for other workers.
    pub patience: Duration,
    /// Interval between two heartbeats.
    pub heartbeat: Duration,
    /// A server that sends nothing for this long is considered dead; the client reconnects.
    pub silence: Duration,
    /// Delay before the first attempt to reconnect; it doubles with each attempt.
    pub shortest_pause: Duration,
    /// Maximum delay between two attempts to reconnect.
    pub longest_pause: Duration,
    /// Missing peers; shared by the links to all servers.
    pub missing_peers: Arc<MissingPeers>,
}

impl ClientConfig {
    /// Default limits, with the given identity.
    pub fn new(identity: Identity) -> Self {
        ClientConfig {
            identity,
            tls: None,
            cap: 1 << 30,
            deadline: DEADLINE,
            patience: PATIENCE,
            heartbeat: Duration::from_secs(1),
            silence: Duration::from_secs(3),
            shortest_pause: Duration::from_millis(20),
            longest_pause: Duration::from_secs(1),
            missing_peers: Arc::new(MissingPeers::new(PATIENCE)),
        }
    }
}
