//! A worker's servers: who they are, in which mode it trains with them, and the one communicator that does.
//!
//! Programs of a worker share its tables: the first one that trains makes them, and those that evaluate read them. The
//! embedded default has no cluster.

use std::sync::Arc;

use openfleet_core::strategy::Strategy;
use openfleet_table::{DenseSpec, SparseSpec};
use parking_lot::Mutex;

use crate::client::Link;
use crate::communicator::{Communicator, Remote, Worker, for_mode};
use crate::error::{Error, Result};

/// The servers of a job, as one worker sees them.
pub struct Cluster {
    links: Vec<Link>,
    worker: Worker,
    strategy: Strategy,
    connected: Mutex<Option<Connected>>,
}

struct Connected {
    names: Vec<String>,
    communicator: Arc<dyn Communicator>,
}

impl Cluster {
    /// A worker with links to all servers, in the order every worker has them.
    pub fn new(links: Vec<Link>, worker: Worker, strategy: Strategy) -> Self {
        Cluster { links, worker, strategy, connected: Mutex::default() }
    }

    /// Which worker this is.
    pub fn worker(&self) -> Worker {
        self.worker
    }

    /// The communicator for a program's tables. The first program's request makes them on the servers; later ones must
    /// name the same tables in the same order.
    pub fn communicator(
        &self,
        sparse: &[(String, SparseSpec)],
        dense: &[(String, DenseSpec, Vec<f32>)],
    ) -> Result<Arc<dyn Communicator>> {
        let names: Vec<String> =
            sparse.iter().map(|(name, _)| name).chain(dense.iter().map(|(name, ..)| name)).cloned().collect();
        let mut connected = self.connected.lock();
        if let Some(existing) = connected.as_ref() {
            if existing.names == names {
                return Ok(existing.communicator.clone());
            }
            return Err(Error::TableMismatch {
                table: "all".into(),
                existing: existing.names.join(", "),
                wanted: names.join(", "),
            });
        }
        let (mode, rule) = (self.strategy.mode(), self.strategy.placement());
        let remote = Remote::create(self.links.clone(), self.worker, mode, rule, sparse, dense)?;
        let communicator: Arc<dyn Communicator> = for_mode(remote, &self.strategy, sparse, dense)?.into();
        *connected = Some(Connected { names, communicator: communicator.clone() });
        Ok(communicator)
    }

    /// Bytes that went to all servers and came from them.
    pub fn traffic(&self) -> (u64, u64) {
        use std::sync::atomic::Ordering::Relaxed;
        let sent = self.links.iter().map(|link| link.traffic().sent.load(Relaxed)).sum();
        let received = self.links.iter().map(|link| link.traffic().received.load(Relaxed)).sum();
        (sent, received)
    }

    /// This worker is done: what is queued is sent, and the servers hear that it leaves.
    pub fn close(&self) -> Result<()> {
        match self.connected.lock().take() {
            Some(connected) => connected.communicator.close(),
            None => Ok(()),
        }
    }
}
