//! The life of a worker process: wait for the servers, connect, depart.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use openfleet_core::topology::{Endpoint, Role};
use openfleet_dist::communicator::Worker;
use openfleet_dist::request::heartbeat::Heartbeat;
use openfleet_dist::session::Identity;
use openfleet_dist::{ClientConfig, Cluster, Link, Reach, reach};
use openfleet_engine::{Executor, Scope};
use tokio::runtime::Runtime;

use super::reporting::Watch;
use super::{Fleet, Others, Stage, waiting};
use crate::error::{Error, Result};
use crate::job_file::JobFile;
use crate::progress::Progress;

/// How long a departing worker waits for the last replies.
const LAST_REPLY: Duration = Duration::from_secs(1);

impl Fleet {
    /// Waits for the servers, or for the other ranks of a collective job, and connects to them. Idempotent.
    ///
    /// Every three seconds it prints which servers or ranks have not answered.
    ///
    /// # Errors
    /// If a server does not answer within the wait limit or refuses this worker, or `distributed_optimizer` was not called.
    pub fn init_worker(&self) -> Result<()> {
        self.only_for("init_worker", Role::Worker)?;
        let mut stage = self.stage.lock();
        match *stage {
            Stage::Connected { .. } | Stage::InGroup(_) | Stage::TrainingLocally => return Ok(()),
            Stage::Ended => return Err(Error::TooLate { call: "init_worker", after: "stop_worker" }),
            Stage::Initialized(_) | Stage::ServerReady(_) => {}
        }
        if self.topology.is_collective() {
            let reserved = match &mut *stage {
                Stage::Initialized(reserved) => reserved.take(),
                _ => None,
            };
            *stage = Stage::InGroup(self.join_ranks(reserved)?);
            return Ok(());
        }
        let Some(strategy) = *self.strategy.lock() else {
            return Err(Error::TooEarly { call: "init_worker", missing: "distributed_optimizer" });
        };
        if self.is_local() {
            *stage = Stage::TrainingLocally;
            return Ok(());
        }
        self.check_secret()?;
        self.warn_without_secret(self.topology.servers());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(strategy.thread_pool_size())
            .enable_all()
            .build()
            .map_err(|source| Error::Runtime { source })?;
        let config = self.client_config();
        let links = self.links(&runtime, &config);
        if strategy.launch_barrier() {
            let interrupted = self.interrupted.subscribe();
            let waiting = waiting::for_servers(&links, self.settings.wait_limit, &self.notices, interrupted);
            if let Err(error) = runtime.block_on(waiting) {
                runtime.shutdown_background();
                return Err(error);
            }
        }
        let worker = Worker {
            rank: self.topology.rank() as u32,
            count: self.topology.worker_count() as u32,
            threads: self.settings.threads,
        };
        let job_file = self.settings.job_file.clone();
        let restarts = move || job_file.as_ref().is_some_and(|file| !JobFile::read(file).ending);
        let cluster = Cluster::new(links.clone(), worker, strategy).restarts_if(restarts);
        let cluster = Arc::new(cluster.named(self.settings.job.to_string()));
        // Without the launch barrier the worker enters the job with its first request.
        let entered = if strategy.launch_barrier() { cluster.progress() } else { Ok((0, Vec::new())) };
        let (passes, batches) = match entered {
            Ok(progress) => progress,
            Err(error) => {
                runtime.shutdown_background();
                return Err(error.into());
            }
        };
        self.notices.print(&format!("{}: communicator started, trainer id {}", self.name(), worker.rank));
        self.notices.print_for_paddle("Communicator start");
        self.notices.print_for_paddle(&format!("init rpc client with trainer_id {}", worker.rank));
        if passes > 0 || batches.iter().any(|&batches| batches > 0) {
            let batches: u64 = batches.iter().sum();
            let name = self.name();
            self.notices
                .print(&format!("{name}: resumes after {passes} complete passes; {batches} batches will be skipped"));
        }
        let servers = self.topology.servers().to_vec();
        let watch = Watch::of_worker(self.report.clone(), config.missing_peers.clone(), servers);
        *stage = Stage::Connected { cluster, links, runtime, watch };
        Ok(())
    }

    fn client_config(&self) -> ClientConfig {
        let identity = Identity {
            job: self.settings.job.to_string(),
            secret: self.settings.secret.clone(),
            rank: self.topology.rank() as u32,
            incarnation: self.settings.incarnation,
        };
        ClientConfig { tls: self.settings.worker_tls.clone(), ..ClientConfig::new(identity) }
    }

    fn links(&self, runtime: &Runtime, config: &ClientConfig) -> Vec<Link> {
        let servers = self.topology.servers().iter();
        servers
            .map(|server| Link::remote(runtime.handle(), server.clone(), config.clone(), self.connector.clone()))
            .collect()
    }

    /// The connection to the servers; `None` without servers.
    pub fn cluster(&self) -> Result<Option<Arc<Cluster>>> {
        match self.working("cluster")? {
            Others::Servers(cluster) => Ok(Some(cluster)),
            Others::Ranks(_) | Others::Nobody => Ok(None),
        }
    }

    /// An executor on the tables of the job: on the servers, or in the scope if there are none.
    pub fn executor(&self, scope: Arc<Scope>) -> Result<Executor> {
        match self.working("executor")? {
            Others::Servers(cluster) => {
                let executor = Executor::on_cluster(scope, cluster);
                Ok(match self.trained.lock().clone() {
                    Some(program) => executor.with_tables_of(program),
                    None => executor,
                })
            }
            Others::Ranks(group) => {
                self.remember(&scope);
                let executor = Executor::in_group(scope, group, self.collective_settings());
                // All ranks of a restarted job return to its newest checkpoint.
                Ok(executor.resuming_from(self.return_point.clone()))
            }
            Others::Nobody => {
                self.remember(&scope);
                Ok(Executor::new(scope))
            }
        }
    }

    /// Remembers a scope that holds tables of this process.
    fn remember(&self, scope: &Arc<Scope>) {
        let mut scopes = self.scopes.lock();
        scopes.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&Arc::downgrade(scope)));
        scopes.push(Arc::downgrade(scope));
    }

    /// Ends this worker: flushes queued gradients and departs from the servers, which end when all workers have departed. In a
    /// collective job it returns when all ranks depart. Idempotent.
    pub fn stop_worker(&self) -> Result<()> {
        self.only_for("stop_worker", Role::Worker)?;
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Ended) {
            Stage::Connected { cluster, links, runtime, watch } => {
                let closed = cluster.close();
                drop(watch);
                // Closing the connection with a reply in flight would look like a broken connection, and servers would wait
                // for this worker to return.
                let last: Vec<_> =
                    links.iter().filter_map(|link| link.send_within(&Heartbeat, LAST_REPLY).ok()).collect();
                // A server that has already ended does not answer.
                last.into_iter().for_each(|answer| drop(answer.wait()));
                if closed.is_ok() {
                    // From here on this process needs no server: the launcher may see servers end.
                    self.report_progress(Progress::DONE, None, None);
                }
                // Closes the connections even if an executor still holds the cluster: the servers wait for that.
                runtime.shutdown_background();
                Ok(closed?)
            }
            Stage::InGroup(group) => {
                drop(stage);
                group.depart()?;
                *self.standby.lock() = None;
                self.report_progress(Progress::DONE, None, None);
                Ok(())
            }
            // A rank that never used the group has nothing to depart from.
            Stage::Initialized(_) if self.topology.is_collective() => Ok(()),
            before @ (Stage::Initialized(_) | Stage::ServerReady(_)) => {
                *stage = before;
                Err(Error::TooEarly { call: "stop_worker", missing: "init_worker" })
            }
            Stage::TrainingLocally | Stage::Ended => Ok(()),
        }
    }

    /// Fails if a server's address needs a secret and there is none: that server refuses to listen, and this worker would wait
    /// for it until the limit. Only addresses are checked; a server resolves its own host name.
    fn check_secret(&self) -> Result<()> {
        if !self.settings.secret.is_empty() {
            return Ok(());
        }
        for server in self.topology.servers() {
            let is_trusted = match reach_of(server) {
                Some(Reach::Public) => false,
                Some(Reach::Private) => self.trusts_private_network,
                Some(Reach::Machine) | None => true,
            };
            if !is_trusted {
                return Err(Error::NoSecret { endpoint: server.clone() });
            }
        }
        Ok(())
    }

    /// Prints a warning if processes of other machines could join the job, because there is no secret.
    pub(super) fn warn_without_secret(&self, servers: &[Endpoint]) {
        let is_open = |server: &&Endpoint| server.host() != "localhost" && reach_of(server) != Some(Reach::Machine);
        if !self.settings.secret.is_empty() {
            return;
        }
        if let Some(server) = servers.iter().find(is_open) {
            self.notices.print(&format!(
                "{}: warning: there is no secret: anyone who can reach {server} can read and change the tables; set \
                 `OPENFLEET_SECRET` to the same text for every process of the job",
                self.name()
            ));
        }
    }
}

/// The networks that can reach a server; `None` if the list has a host name instead of an address.
fn reach_of(server: &Endpoint) -> Option<Reach> {
    server.host().parse::<IpAddr>().ok().map(reach)
}
