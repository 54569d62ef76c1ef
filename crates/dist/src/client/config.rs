//! Identity, TLS, time limits and payload limit of a worker's connections.

use std::sync::Arc;
use std::time::Duration;

use crate::notices::Notices;
use crate::session::Identity;
use crate::tls::ClientTls;

/// How long an ordinary request may take, unless somebody says otherwise.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// How long a request may take that waits for other workers, unless somebody says otherwise.
pub(super) const PATIENCE: Duration = Duration::from_secs(900);

/// How a worker talks to its servers.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Who it is.
    pub identity: Identity,
    /// Whom it trusts, where servers speak TLS.
    pub tls: Option<ClientTls>,
    /// The most bytes of one answer.
    pub cap: u64,
    /// How long an ordinary request may take, reconnecting included.
    pub deadline: Duration,
    /// How long a request may take that waits for other workers.
    pub patience: Duration,
    /// A sign of life is sent so often.
    pub heartbeat: Duration,
    /// A server that is silent for so long is taken for dead, and connected to anew.
    pub silence: Duration,
    /// The pause before the first attempt to connect again; it doubles with each.
    pub shortest_pause: Duration,
    /// The longest pause between two attempts to connect.
    pub longest_pause: Duration,
    /// Who is missing: shared by the links to all servers.
    pub notices: Arc<Notices>,
}

impl ClientConfig {
    /// The usual times, for an identity.
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
            notices: Arc::new(Notices::new(PATIENCE)),
        }
    }
}
