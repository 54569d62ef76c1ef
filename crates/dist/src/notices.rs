//! Who is missing, as one worker knows it: death is news, and is said once to everybody who waits.
//!
//! Servers answer heartbeats with the workers that they miss; what a worker cannot reach it notices itself. Each is logged as a
//! warning when it is first missed and when it is back, with how long it is waited for.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use crate::server::Absent;

/// Who is missing.
#[derive(Debug)]
pub struct Notices {
    /// How long others are waited for.
    patience: Duration,
    missing: Mutex<Missing>,
}

#[derive(Debug, Default)]
struct Missing {
    /// By rank: since when, and which server says so.
    workers: BTreeMap<u32, (Instant, String)>,
    /// By endpoint: since when.
    servers: BTreeMap<String, Instant>,
}

impl Notices {
    /// Nobody is missing yet; others are waited for so long.
    pub fn new(patience: Duration) -> Self {
        Notices { patience, missing: Mutex::default() }
    }

    /// Workers that are missing, and for how long.
    pub fn workers(&self) -> Vec<(u32, Duration)> {
        self.missing.lock().workers.iter().map(|(&rank, (since, _))| (rank, since.elapsed())).collect()
    }

    /// Servers that are missing, by endpoint, and for how long.
    pub fn servers(&self) -> Vec<(String, Duration)> {
        self.missing.lock().servers.iter().map(|(name, since)| (name.clone(), since.elapsed())).collect()
    }

    /// A server says which workers it misses.
    pub(crate) fn workers_are_missing(&self, server: &str, absent: &[Absent]) {
        let mut missing = self.missing.lock();
        for Absent { rank, seconds } in absent {
            let since = Instant::now() - Duration::from_secs_f64(seconds.clamp(0.0, 1e6));
            if missing.workers.insert(*rank, (since, server.to_owned())).is_none() {
                let patience = self.patience.as_secs();
                warn!("worker {rank} has not been heard of for {seconds:.1} s; it is waited for up to {patience} s");
            }
        }
        // Only the server that missed a worker can say that it is back.
        let is_back = |rank: &u32, by: &str| by == server && !absent.iter().any(|absent| absent.rank == *rank);
        for (rank, _) in missing.workers.extract_if(.., |rank, (_, by)| is_back(rank, by)) {
            warn!("worker {rank} is back");
        }
    }

    /// A server cannot be reached, or does not answer.
    pub(crate) fn server_is_missing(&self, server: &str) {
        let mut missing = self.missing.lock();
        if !missing.servers.contains_key(server) {
            missing.servers.insert(server.to_owned(), Instant::now());
            warn!("server {server} does not answer; it is asked again");
        }
    }

    /// A server can be reached.
    pub(crate) fn server_is_back(&self, server: &str) {
        if self.missing.lock().servers.remove(server).is_some() {
            warn!("server {server} is back");
        }
    }
}
