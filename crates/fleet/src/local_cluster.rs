//! A whole cluster inside one process: servers, and each worker's view of them.
//!
//! For tests, benches and trying out a mode. Over sockets it equals a real job except for the processes; without sockets,
//! requests are direct calls.

use std::sync::Arc;

use openfleet_core::strategy::Strategy;
use openfleet_core::topology::{Endpoint, Incarnation};
use openfleet_dist::client::Tcp;
use openfleet_dist::communicator::Worker;
use openfleet_dist::handshake::Secret;
use openfleet_dist::session::Identity;
use openfleet_dist::{ClientConfig, Cluster, Link, Resume, Server, ServerConfig, State};

use crate::error::{Error, Result};

/// Servers inside this process.
pub struct LocalCluster {
    states: Vec<Arc<State>>,
    /// Only with sockets.
    sockets: Option<Sockets>,
    strategy: Strategy,
    workers: u32,
    threads: u32,
}

struct Sockets {
    runtime: tokio::runtime::Runtime,
    endpoints: Vec<Endpoint>,
    secret: Secret,
}

impl LocalCluster {
    /// Starts `servers` servers for `workers` workers of `threads` training threads each.
    pub fn start(strategy: Strategy, servers: usize, workers: u32, threads: u32, over_sockets: bool) -> Result<Self> {
        let states: Vec<Arc<State>> = (0..servers).map(|_| Arc::new(State::new())).collect();
        let sockets = if over_sockets { Some(Sockets::bind(&states)?) } else { None };
        Ok(LocalCluster { states, sockets, strategy, workers, threads })
    }

    /// Makes the servers load their tables from a checkpoint when workers create them.
    pub fn resume_from(&self, address: &str) -> Result<()> {
        for state in &self.states {
            state.resume_from(address, Resume::Run)?;
        }
        Ok(())
    }

    /// The servers as a worker sees them.
    pub fn worker(&self, rank: u32) -> Cluster {
        let links = self.states.iter().enumerate().map(|(server, state)| match &self.sockets {
            None => Link::in_process(&format!("server {server}"), state.clone(), rank),
            Some(sockets) => {
                let identity = Identity {
                    job: ServerConfig::default().job,
                    secret: sockets.secret.clone(),
                    rank,
                    incarnation: Incarnation(1),
                };
                let endpoint = sockets.endpoints[server].clone();
                Link::remote(sockets.runtime.handle(), endpoint, ClientConfig::new(identity), Arc::new(Tcp))
            }
        });
        let worker = Worker { rank, count: self.workers, threads: self.threads };
        Cluster::new(links.collect(), worker, self.strategy)
    }
}

impl Sockets {
    fn bind(states: &[Arc<State>]) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|source| Error::Runtime { source })?;
        let secret = Secret::new(openfleet_dist::handshake::fresh_nonce());
        let mut endpoints = Vec::with_capacity(states.len());
        for state in states {
            let config = ServerConfig { secret: secret.clone(), ..ServerConfig::default() };
            let server = runtime.block_on(Server::bind("127.0.0.1", 0, config, state.clone()))?;
            endpoints.push(server.endpoint()?);
            runtime.spawn(server.run());
        }
        Ok(Sockets { runtime, endpoints, secret })
    }
}
