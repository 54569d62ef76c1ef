//! The processes of a job: roles, ranks and endpoints, and which one this process is.
//!
//! A [`Topology`] is checked when it is created: ranks are in range, endpoints are distinct, there is a worker, and there are
//! servers unless the job has none by design. Role makers read an environment and create one; the launcher does the reverse.
//! Nothing here resolves a host name, opens a port or connects to a process.

mod endpoint;
mod identity;

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::placement::Buckets;

pub use endpoint::Endpoint;
pub use identity::{Incarnation, JobId};

/// What a process does in a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Reads data and computes gradients.
    Worker,
    /// Keeps tables.
    Server,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Worker => "worker",
            Role::Server => "server",
        })
    }
}

/// Every process of a job, and which of them this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    role: Role,
    rank: usize,
    servers: Vec<Endpoint>,
    worker_count: usize,
    worker_endpoints: Vec<Endpoint>,
    shape: Shape,
}

/// What kind of job it is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    /// Workers train with servers.
    Servers,
    /// Workers train with each other.
    Collective { rendezvous: Option<Endpoint> },
    /// This is the only process.
    Local,
}

impl Topology {
    /// Checks and stores what a role maker found.
    ///
    /// `servers` are in rank order, and so are `worker_endpoints`, which may be empty if no process connects to a worker (a
    /// parameter server job without global shuffle). Fails if there is no server or no worker, if `rank` is not below the
    /// number of processes in its role, if an endpoint occurs twice, or if some workers have an endpoint and others do not.
    pub fn new(
        role: Role,
        rank: usize,
        servers: Vec<Endpoint>,
        worker_count: usize,
        worker_endpoints: Vec<Endpoint>,
    ) -> Result<Self> {
        // At least one server, and no more than there are buckets.
        Buckets::new(servers.len())?;
        Topology { role, rank, servers, worker_count, worker_endpoints, shape: Shape::Servers }.check()
    }

    /// A single process that is the only worker and has its own tables.
    pub fn local() -> Self {
        let (servers, worker_endpoints) = (Vec::new(), Vec::new());
        Topology { role: Role::Worker, rank: 0, servers, worker_count: 1, worker_endpoints, shape: Shape::Local }
    }

    /// Workers that train with each other, without servers.
    ///
    /// `worker_endpoints` as in [`Topology::new`]; if they are not known in advance, the workers find each other at
    /// `rendezvous`.
    pub fn collective(
        rank: usize,
        worker_count: usize,
        worker_endpoints: Vec<Endpoint>,
        rendezvous: Option<Endpoint>,
    ) -> Result<Self> {
        let shape = Shape::Collective { rendezvous };
        Topology { role: Role::Worker, rank, servers: Vec::new(), worker_count, worker_endpoints, shape }.check()
    }

    fn check(self) -> Result<Self> {
        let Topology { role, rank, servers, worker_count, worker_endpoints, .. } = &self;
        let (role, rank, worker_count) = (*role, *rank, *worker_count);
        if worker_count == 0 {
            return Err(Error::NoWorkers);
        }
        if !worker_endpoints.is_empty() && worker_endpoints.len() != worker_count {
            return Err(Error::WorkerEndpoints { worker_count, got: worker_endpoints.len() });
        }
        let mut seen = HashSet::with_capacity(servers.len() + worker_endpoints.len());
        if let Some(endpoint) = servers.iter().chain(worker_endpoints).find(|endpoint| !seen.insert(*endpoint)) {
            return Err(Error::DuplicateEndpoint { endpoint: endpoint.clone() });
        }
        let count = if role == Role::Worker { worker_count } else { servers.len() };
        if rank >= count {
            return Err(Error::Rank { role, rank, count });
        }
        Ok(self)
    }

    /// The role of this process.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The rank of this process within its role, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Whether this process trains alone.
    pub fn is_local(&self) -> bool {
        self.shape == Shape::Local
    }

    /// Whether workers train with each other, without servers.
    pub fn is_collective(&self) -> bool {
        matches!(self.shape, Shape::Collective { .. })
    }

    /// Where the workers of a collective job find each other, if given.
    pub fn rendezvous(&self) -> Option<&Endpoint> {
        match &self.shape {
            Shape::Collective { rendezvous } => rendezvous.as_ref(),
            Shape::Servers | Shape::Local => None,
        }
    }

    /// Endpoints of the servers, in rank order; empty in a local or collective job.
    pub fn servers(&self) -> &[Endpoint] {
        &self.servers
    }

    /// Number of servers; 0 only in a local or collective job.
    pub fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Number of workers; at least 1.
    pub fn worker_count(&self) -> usize {
        self.worker_count
    }

    /// Endpoints of the workers, in rank order, or empty if not given.
    pub fn worker_endpoints(&self) -> &[Endpoint] {
        &self.worker_endpoints
    }

    /// Whether this is a worker.
    pub fn is_worker(&self) -> bool {
        self.role == Role::Worker
    }

    /// Whether this is a server.
    pub fn is_server(&self) -> bool {
        self.role == Role::Server
    }

    /// Whether this is the worker of rank 0, which acts for all of them.
    pub fn is_first_worker(&self) -> bool {
        self.is_worker() && self.rank == 0
    }

    /// Endpoint of this process; a worker may have none.
    pub fn own_endpoint(&self) -> Option<&Endpoint> {
        match self.role {
            Role::Server => self.servers.get(self.rank),
            Role::Worker => self.worker_endpoints.get(self.rank),
        }
    }
}

/// Role, rank and counts, as a log line begins: `worker 1 of 4 (2 servers)`, `worker 1 of 4 (collective)` or `one local
/// process`.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = |count: usize, role: Role| format!("{count} {role}{}", if count == 1 { "" } else { "s" });
        if self.is_local() {
            return f.write_str("one local process");
        }
        let (count, others) = match self.role {
            _ if self.is_collective() => (self.worker_count, "collective".to_owned()),
            Role::Worker => (self.worker_count, counted(self.servers.len(), Role::Server)),
            Role::Server => (self.servers.len(), counted(self.worker_count, Role::Worker)),
        };
        write!(f, "{} {} of {count} ({others})", self.role, self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Hinted;

    fn endpoints(list: &[&str]) -> Vec<Endpoint> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn topologies_that_cannot_be_are_refused() {
        let two = || endpoints(&["a:1", "b:1"]);
        let make = Topology::new;
        let rows = [
            // No server.
            (make(Role::Worker, 0, vec![], 1, vec![]), Error::ServerCount { got: 0 }),
            // No worker.
            (make(Role::Server, 0, two(), 0, vec![]), Error::NoWorkers),
            // Ranks begin at 0: with two workers there is no worker 2.
            (make(Role::Worker, 2, two(), 2, vec![]), Error::Rank { role: Role::Worker, rank: 2, count: 2 }),
            // A server's rank is below the number of servers, however many workers there are.
            (make(Role::Server, 2, two(), 9, vec![]), Error::Rank { role: Role::Server, rank: 2, count: 2 }),
            // The same server twice, once in capitals.
            (
                make(Role::Worker, 0, endpoints(&["a:1", "A:1"]), 1, vec![]),
                Error::DuplicateEndpoint { endpoint: "a:1".parse().unwrap() },
            ),
            // A worker at a server's port.
            (
                make(Role::Worker, 0, two(), 1, endpoints(&["b:1"])),
                Error::DuplicateEndpoint { endpoint: "b:1".parse().unwrap() },
            ),
            // Endpoints for only some of the workers.
            (
                make(Role::Worker, 0, two(), 3, endpoints(&["c:1", "d:1"])),
                Error::WorkerEndpoints { worker_count: 3, got: 2 },
            ),
        ];
        for (got, expected) in rows {
            assert!(expected.hint().is_some(), "{expected} has a hint");
            assert_eq!(got, Err(expected));
        }
    }

    #[test]
    fn a_topology_knows_who_this_process_is() {
        let servers = endpoints(&["a:1", "b:1"]);
        let worker = Topology::new(Role::Worker, 0, servers.clone(), 1, vec![]).unwrap();
        assert!(worker.is_worker() && worker.is_first_worker() && !worker.is_server());
        assert_eq!(worker.own_endpoint(), None);
        assert_eq!(worker.to_string(), "worker 0 of 1 (2 servers)");
        let server = Topology::new(Role::Server, 1, servers.clone(), 1, endpoints(&["c:1"])).unwrap();
        assert!(server.is_server() && !server.is_first_worker());
        assert_eq!(server.own_endpoint(), Some(&servers[1]));
        assert_eq!(server.to_string(), "server 1 of 2 (1 worker)");
    }

    #[test]
    fn a_job_without_servers_is_local_or_collective() {
        let local = Topology::local();
        assert!(local.is_local() && local.is_first_worker() && !local.is_collective());
        assert_eq!((local.server_count(), local.worker_count(), local.to_string()), (0, 1, "one local process".into()));
        let endpoint = || "a:1".parse().unwrap();
        let worker = Topology::collective(1, 4, vec![], Some(endpoint())).unwrap();
        assert!(worker.is_collective() && !worker.is_local());
        assert_eq!((worker.rendezvous(), worker.to_string()), (Some(&endpoint()), "worker 1 of 4 (collective)".into()));
        let rank = Topology::collective(4, 4, vec![], None);
        assert_eq!(rank, Err(Error::Rank { role: Role::Worker, rank: 4, count: 4 }));
        let some = Topology::collective(0, 2, vec![endpoint()], None);
        assert_eq!(some, Err(Error::WorkerEndpoints { worker_count: 2, got: 1 }));
    }
}
