//! The life of a server process: prepare, listen, serve until the workers have departed.

use std::net::IpAddr;

use openfleet_core::topology::{Endpoint, Role};
use openfleet_dist::{Resume, Server, ServerConfig};

#[cfg(doc)]
use super::StopHandle;
use super::reporting::Watch;
use super::{Fleet, Stage};
use crate::error::{Error, Result};
use crate::progress::Progress;

impl Fleet {
    /// Prepares a server. It needs no program: workers describe the tables.
    ///
    /// `address` is a checkpoint to start from, a directory or bucket, written by any number of servers. Tables take their rows
    /// and optimizer state from it when the first worker creates them; a program that does not match gets an error then. Data is
    /// read from the start. A server that the launcher restarts ignores `address` and resumes from the newest checkpoint of
    /// its own run.
    pub fn init_server(&self, address: Option<&str>) -> Result<()> {
        self.begin_server(address, Resume::Values)
    }

    /// Like [`Fleet::init_server`], but resumes the run that wrote the checkpoint: workers skip the batches that it includes.
    pub fn resume_server(&self, address: Option<&str>) -> Result<()> {
        self.begin_server(address, Resume::Run)
    }

    fn begin_server(&self, address: Option<&str>, resume: Resume) -> Result<()> {
        self.only_for("init_server", Role::Server)?;
        let newest = self.settings.resume.as_deref();
        if let Some(address) = newest.or(address) {
            let resume = if newest.is_some() { Resume::Values } else { resume };
            let name = self.name();
            self.notices.print(&match self.state.resume_from(address, resume)? {
                Some(manifest) => format!("{name}: starts from step {} of `{address}`", manifest.step),
                None => format!(
                    "{name}: starts without `{address}`: this run saved it before its workers had sent all their updates"
                ),
            });
        }
        let mut stage = self.stage.lock();
        match &mut *stage {
            Stage::Initialized(reserved) => {
                let reserved = reserved.take();
                *stage = Stage::ServerReady(reserved);
                Ok(())
            }
            Stage::Ended => Err(Error::TooLate { call: "init_server", after: "run_server" }),
            _ => Ok(()),
        }
    }

    /// Listens, and serves until all workers have departed or [`StopHandle::stop`] is called.
    ///
    /// # Errors
    /// If the address cannot be bound, or all workers have been disconnected for 600 s without departing.
    pub fn run_server(&self) -> Result<()> {
        self.only_for("run_server", Role::Server)?;
        let reserved = {
            let mut stage = self.stage.lock();
            match std::mem::replace(&mut *stage, Stage::Ended) {
                Stage::ServerReady(reserved) => reserved,
                before @ Stage::Initialized(_) => {
                    *stage = before;
                    return Err(Error::TooEarly { call: "run_server", missing: "init_server" });
                }
                _ => return Err(Error::TooLate { call: "run_server", after: "run_server" }),
            }
        };
        let Some(endpoint) = self.topology.own_endpoint() else {
            return Err(Error::TooEarly { call: "run_server", missing: "init" });
        };
        let host = self.bind_address(endpoint);
        let config = ServerConfig {
            job: self.settings.job.to_string(),
            secret: self.settings.secret.clone(),
            trusts_private_network: self.trusts_private_network,
            tls: self.settings.server_tls.clone(),
            ..ServerConfig::default()
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|source| Error::Runtime { source })?;
        let (job_file, workers) = (self.settings.job_file.clone(), self.topology.worker_count() as u32);
        let watch = Watch::of_server(self.report.clone(), self.state.clone(), job_file, workers);
        let ended = runtime.block_on(async {
            // Released at the last moment, so that no other process takes the port.
            drop(reserved);
            let server = Server::bind(host, endpoint.port(), config, self.state.clone()).await?;
            let at = server.endpoint()?;
            self.notices.print(&format!("{}: listening on {at}", self.name()));
            self.notices.print_for_paddle(&format!("Server listening on {at} selected port: {}", at.port()));
            self.warn_without_secret(&[at]);
            server.run().await
        });
        runtime.shutdown_background();
        drop(watch);
        ended?;
        if self.state.is_deserted() {
            return Err(Error::Deserted);
        }
        self.notices.print(&format!("{}: ended", self.name()));
        if self.is_done() {
            // Without this the launcher would count it as a server that ended too early.
            self.report_progress(Progress::DONE, None, None);
        }
        Ok(())
    }

    /// Whether every worker has departed. If not, the server was asked to stop.
    pub fn is_done(&self) -> bool {
        self.state.is_done()
    }

    /// The address to bind: `OPENFLEET_BIND`, else the host of this server's endpoint. A host name may resolve to loopback on the
    /// machine itself (Debian's `/etc/hosts`) or not yet resolve (a pod that has just started), so with a name and a secret the
    /// server listens on all interfaces.
    pub(super) fn bind_address<'a>(&'a self, endpoint: &'a Endpoint) -> &'a str {
        let host = endpoint.host();
        let is_name = host != "localhost" && host.parse::<IpAddr>().is_err();
        match &self.settings.bind {
            Some(address) => address,
            None if is_name && !self.settings.secret.is_empty() => "0.0.0.0",
            None => host,
        }
    }
}
