//! Missing peers, as one worker knows them. Each is logged once when it goes missing and once when it is back.
//!
//! Servers reply to heartbeats with the workers they are missing. A worker finds out by itself which servers it cannot reach.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use crate::server::Absent;

/// Which workers and servers are missing.
#[derive(Debug)]
pub struct MissingPeers {
    /// How long requests wait for other workers; only for the log message.
    patience: Duration,
    missing: Mutex<Missing>,
}

#[derive(Debug, Default)]
struct Missing {
    /// By rank: since when, and which server reported it.
    workers: BTreeMap<u32, (Instant, String)>,
    /// By endpoint: since when.
    servers: BTreeMap<String, Instant>,
}

impl MissingPeers {
    /// No peer is missing. `patience` is the time limit of requests that wait for other workers.
    pub fn new(patience: Duration) -> Self {
        MissingPeers { patience, missing: Mutex::default() }
    }

    /// Missing workers, and for how long.
    pub fn workers(&self) -> Vec<(u32, Duration)> {
        self.missing.lock().workers.iter().map(|(&rank, (since, _))| (rank, since.elapsed())).collect()
    }

    /// Missing servers by endpoint, and for how long.
    pub fn servers(&self) -> Vec<(String, Duration)> {
        self.missing.lock().servers.iter().map(|(name, since)| (name.clone(), since.elapsed())).collect()
    }

    /// A server has reported the workers it is missing.
    pub(crate) fn workers_are_missing(&self, server: &str, absent: &[Absent]) {
        let mut missing = self.missing.lock();
        for Absent { rank, seconds } in absent {
            let since = Instant::now() - Duration::from_secs_f64(seconds.clamp(0.0, 1e6));
            if missing.workers.insert(*rank, (since, server.to_owned())).is_none() {
                let patience = self.patience.as_secs();
                warn!("worker {rank} has not been heard from for {seconds:.1} s; waiting up to {patience} s for it");
            }
        }
        // Only the server that reported a worker as missing can report it back.
        let is_back = |rank: &u32, by: &str| by == server && !absent.iter().any(|absent| absent.rank == *rank);
        for (rank, _) in missing.workers.extract_if(.., |rank, (_, by)| is_back(rank, by)) {
            warn!("worker {rank} is back");
        }
    }

    /// A server is unreachable or silent.
    pub(crate) fn server_is_missing(&self, server: &str) {
        let mut missing = self.missing.lock();
        if !missing.servers.contains_key(server) {
            missing.servers.insert(server.to_owned(), Instant::now());
            warn!("server {server} does not answer; retrying");
        }
    }

    /// A server is reachable.
    pub(crate) fn server_is_back(&self, server: &str) {
        if self.missing.lock().servers.remove(server).is_some() {
            warn!("server {server} is back");
        }
    }
}
