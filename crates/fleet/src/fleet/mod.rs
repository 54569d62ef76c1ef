//! `Fleet`: one program for every process of a job.
//!
//! ```text
//! init -> distributed_optimizer -+- server: init_server -> run_server
//!                                +- worker: init_worker -> train, barrier_worker, all_reduce, ... -> stop_worker
//! ```
//!
//! A role maker decides whether this process is a server or a worker. Without servers the same calls train in this process,
//! which then holds the tables itself. A call in the wrong order or role is an error that names the missing call. There is no
//! global state: a whole job of `Fleet`s fits into one test.
//!
//! Methods stand by subject: `server` and `worker` start and end a process of that role, `collective` has the calls that all
//! workers make together, `saving` has checkpoints and shrinking.

mod collective;
mod metrics;
mod notices;
mod optimizer;
mod ranks;
mod reporting;
mod saving;
mod server;
mod util;
mod waiting;
mod worker;

use std::sync::{Arc, Weak};
use std::time::Duration;

use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_core::topology::{Endpoint, Role, Topology};
use openfleet_dist::client::{Connector, Tcp};
use openfleet_dist::collective::RankGroup;
use openfleet_dist::{Cluster, Link, State};
use openfleet_engine::dataset::split_files;
use openfleet_engine::{Minimize, Program, Scope};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use self::ranks::StandbyRank;
use self::reporting::{Report, Watch};
pub use metrics::Metrics;
pub use notices::Notices;
pub use optimizer::DistributedOptimizer;
pub use util::Util;

use crate::error::{Error, Result};
use crate::job_file::JobFile;
use crate::role::{self, Assignment, ReservedPort, RoleMaker, Settings};
use crate::variables::Variables;

/// One process of a job, of either role.
///
/// ```
/// use std::sync::Arc;
///
/// use openfleet::fleet::{Fleet, ProcessContext};
/// use openfleet::{Minimize, Optimizer, Scope, Sgd, StrategyOptions};
///
/// // `Fleet::init(None)` reads the environment; here it is empty, so this process trains alone.
/// let fleet = Fleet::init_in(None, ProcessContext::quiet([]))?;
/// let optimizer = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1);
/// let optimizer = fleet.distributed_optimizer(optimizer, &StrategyOptions::distributed_strategy())?;
/// // optimizer.minimize(&mut net.main, loss)?;
/// if fleet.is_server() {
///     fleet.init_server(None)?;
///     fleet.run_server()?;
/// } else {
///     fleet.init_worker()?;
///     let executor = fleet.executor(Arc::new(Scope::new()))?;
///     // executor.run_startup(&net.startup)?; executor.train_from_dataset(&net.main, ...)?;
///     fleet.stop_worker()?;
/// }
/// # Ok::<(), openfleet::Error>(())
/// ```
pub struct Fleet {
    topology: Topology,
    settings: Settings,
    /// Whether servers on private addresses are allowed without a secret.
    trusts_private_network: bool,
    notices: Notices,
    connector: Arc<dyn Connector>,
    strategy: Arc<Mutex<Option<Strategy>>>,
    /// The program that the job trains, after `minimize`.
    trained: Arc<Mutex<Option<Arc<Program>>>>,
    stage: Mutex<Stage>,
    /// The state of a server; unused on a worker.
    state: Arc<State>,
    /// Set to end a wait for servers.
    interrupted: watch::Sender<bool>,
    /// Without servers: the scopes that hold the tables.
    scopes: Arc<Mutex<Vec<Weak<Scope>>>>,
    /// What the launcher reads about this process.
    report: Report,
    /// In a collective job: the checkpoint that all its ranks return to, once they have joined.
    return_point: Arc<Mutex<Option<String>>>,
    /// The identity of the run, as all ranks of a collective job know it.
    run: Mutex<Option<String>>,
    /// Takes part in the steps of other ranks if this one has not trained the job's program.
    standby: Mutex<Option<Arc<StandbyRank>>>,
}

/// The last step of its life cycle that this process has reached.
enum Stage {
    /// After `init`.
    Initialized(Option<ReservedPort>),
    /// After `init_server`.
    ServerReady(Option<ReservedPort>),
    /// After `init_worker`, without servers.
    TrainingLocally,
    /// After `init_worker`, with servers.
    Connected { cluster: Arc<Cluster>, links: Vec<Link>, runtime: Runtime, watch: Watch },
    /// After `init_worker`, in a collective job.
    InGroup(Arc<RankGroup>),
    /// After `run_server` or `stop_worker`.
    Ended,
}

/// Whom a worker trains with.
enum Others {
    /// Servers, and other workers through them.
    Servers(Arc<Cluster>),
    /// Other ranks.
    Ranks(Arc<RankGroup>),
    /// Nobody.
    Nobody,
}

/// What a `Fleet` takes from its process. The default is the real process; a test passes its own.
pub struct ProcessContext {
    /// The environment.
    pub variables: Variables,
    /// Where lines for the user go.
    pub notices: Notices,
    /// How servers are reached.
    pub connector: Arc<dyn Connector>,
}

impl Default for ProcessContext {
    fn default() -> Self {
        ProcessContext { variables: Variables::of_process(), notices: Notices::stderr(), connector: Arc::new(Tcp) }
    }
}

impl ProcessContext {
    /// Exactly these variables, with lines for the user discarded.
    pub fn quiet<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let variables = variables.into_iter().collect();
        ProcessContext { variables, notices: Notices::silent(), connector: Arc::new(Tcp) }
    }
}

impl Fleet {
    /// Determines the role of this process from a role maker, or from its environment. Prints one line on standard error with
    /// the role and where it came from.
    ///
    /// # Errors
    /// If the environment or the role maker describes no valid role; the error names the variable.
    pub fn init(role_maker: Option<&dyn RoleMaker>) -> Result<Self> {
        Fleet::init_in(role_maker, ProcessContext::default())
    }

    /// [`Fleet::init`] with the caller's environment, output and connector.
    pub fn init_in(role_maker: Option<&dyn RoleMaker>, context: ProcessContext) -> Result<Self> {
        let chosen;
        let role_maker = match role_maker {
            Some(given) => given,
            None => {
                chosen = role::choose(&context.variables);
                chosen.as_ref()
            }
        };
        Fleet::init_as(role_maker, context)
    }

    /// [`Fleet::init_in`] for a collective job: the environment gives the rank, and a single process is a job of one rank.
    pub fn init_collective(context: ProcessContext) -> Result<Self> {
        let role_maker = role::choose_collective(&context.variables);
        Fleet::init_as(role_maker.as_ref(), context)
    }

    fn init_as(role_maker: &dyn RoleMaker, context: ProcessContext) -> Result<Self> {
        let ProcessContext { variables, notices, connector } = context;
        let mut settings = Settings::read(&variables)?;
        let Assignment { topology, bind, secret, reserved, trusts_private_network } =
            role_maker.assign(&variables, &settings)?;
        notices.print(&format!("{topology}: {}", role_maker.source(&variables)));
        settings.bind = settings.bind.or(bind);
        if let Some(secret) = secret {
            settings.secret = secret;
        }
        let report = Report::to(settings.progress_file.clone());
        let state = Arc::new(State::new());
        if let Some(run) = &settings.run {
            state.set_run(run);
        }
        Ok(Fleet {
            topology,
            report,
            settings,
            trusts_private_network,
            notices,
            connector,
            strategy: Arc::default(),
            trained: Arc::default(),
            stage: Mutex::new(Stage::Initialized(reserved)),
            state,
            interrupted: watch::channel(false).0,
            scopes: Arc::default(),
            return_point: Arc::default(),
            run: Mutex::default(),
            standby: Mutex::default(),
        })
    }

    /// Sets how long to wait for servers, overriding `OPENFLEET_WAIT_SECONDS` (default 900 s).
    #[must_use]
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.settings.wait_limit = limit;
        self
    }

    /// Sets the training threads per worker, overriding `CPU_NUM` (default 1). Must be the same on every worker.
    #[must_use]
    pub fn threads(mut self, threads: u32) -> Self {
        self.settings.threads = threads.max(1);
        self
    }

    /// Training threads per worker.
    pub fn thread_num(&self) -> usize {
        self.settings.threads as usize
    }

    /// Reports the progress of this process to the launcher, if there is one. A failure to report is ignored.
    pub fn report_progress(&self, state: &str, samples: Option<u64>, samples_per_second: Option<f64>) {
        self.report.update(|progress| {
            progress.state = Some(state.to_owned());
            (progress.samples, progress.samples_per_second) = (samples, samples_per_second);
        });
    }

    /// Whether the launcher is ending the job. A process that is asked to stop then departs from the servers; otherwise it just
    /// exits, because the launcher will restart it. Always true without a launcher.
    pub(crate) fn is_job_ending(&self) -> bool {
        self.settings.job_file.as_ref().is_none_or(|file| JobFile::read(file).ending)
    }

    /// All processes of the job, and which of them this is.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether this process reads data and computes gradients.
    pub fn is_worker(&self) -> bool {
        self.topology.is_worker()
    }

    /// Whether this process keeps tables.
    pub fn is_server(&self) -> bool {
        self.topology.is_server()
    }

    /// Whether this is worker 0, which saves and prints for all.
    pub fn is_first_worker(&self) -> bool {
        self.topology.is_first_worker()
    }

    /// This worker's rank.
    pub fn worker_index(&self) -> Result<usize> {
        self.only_for("worker_index", Role::Worker)?;
        Ok(self.topology.rank())
    }

    /// The number of workers.
    pub fn worker_num(&self) -> usize {
        self.topology.worker_count()
    }

    /// This server's rank.
    pub fn server_index(&self) -> Result<usize> {
        self.only_for("server_index", Role::Server)?;
        Ok(self.topology.rank())
    }

    /// The number of servers; 0 if this process trains locally.
    pub fn server_num(&self) -> usize {
        self.topology.server_count()
    }

    /// The endpoints of the servers, in rank order.
    pub fn server_endpoints(&self) -> &[Endpoint] {
        self.topology.servers()
    }

    /// The endpoints of the workers, in rank order; empty if the environment does not give them.
    pub fn worker_endpoints(&self) -> &[Endpoint] {
        self.topology.worker_endpoints()
    }

    /// Chooses the training mode. Prints one line with the resolved strategy. A second call replaces the first, until
    /// [`Fleet::init_worker`].
    pub fn distributed_optimizer(
        &self,
        optimizer: Minimize,
        strategy: &StrategyOptions,
    ) -> Result<DistributedOptimizer> {
        let unused = if self.topology.is_collective() { strategy.needing_servers() } else { Vec::new() };
        let strategy = match self.topology.is_collective() {
            true => Strategy::resolve_collective(strategy)?,
            false => Strategy::resolve(strategy)?,
        };
        let stage = self.stage.lock();
        if !matches!(*stage, Stage::Initialized(_) | Stage::ServerReady(_)) {
            return Err(Error::TooLate { call: "distributed_optimizer", after: self.last_call(&stage) });
        }
        // Servers take the mode from the workers.
        match self.is_worker() {
            true if strategy.mode() == Mode::Collective => {
                self.notices.print(&format!("{}: {strategy}", self.name()));
                if !unused.is_empty() && self.is_first_worker() {
                    self.notices.print(&format!("without servers these options have no effect: {}", unused.join(", ")));
                }
            }
            true if self.is_local() => {
                self.notices.print(&format!("{strategy}; no servers, so training is local"));
            }
            true => self.notices.print(&format!("{}: {strategy}", self.name())),
            false => {}
        }
        *self.strategy.lock() = Some(strategy);
        Ok(DistributedOptimizer::new(optimizer, strategy, self.trained.clone()))
    }

    /// A handle that ends [`Fleet::run_server`] or a wait for servers from another thread, for example a signal handler.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle { state: self.state.clone(), interrupted: self.interrupted.clone() }
    }

    /// This worker's part of a list of files: contiguous blocks in rank order, the first ones one file longer. The part is
    /// empty if there are more workers than files.
    pub fn split_files<'a, T>(&self, files: &'a [T]) -> Result<&'a [T]> {
        self.only_for("split_files", Role::Worker)?;
        Ok(split_files(files, self.topology.rank(), self.topology.worker_count()))
    }

    /// The small helpers that PaddlePaddle scripts call as `fleet.util`.
    pub fn util(&self) -> Util<'_> {
        Util::new(self)
    }

    /// Metrics over all workers.
    pub fn metrics(&self) -> Metrics<'_> {
        Metrics::new(self)
    }

    /// `worker 1 of 4`.
    fn name(&self) -> String {
        let count = if self.is_server() { self.server_num() } else { self.worker_num() };
        format!("{} {} of {count}", self.topology.role(), self.topology.rank())
    }

    /// Whether this process is the whole job.
    fn is_local(&self) -> bool {
        self.topology.is_local()
    }

    fn only_for(&self, call: &'static str, role: Role) -> Result<()> {
        if self.topology.role() == role {
            return Ok(());
        }
        Err(Error::WrongRole { call, expected: role, got: self.topology.to_string() })
    }

    /// Whom this worker trains with, between `init_worker` and `stop_worker`. The first call in a collective job joins it.
    fn working(&self, call: &'static str) -> Result<Others> {
        self.only_for(call, Role::Worker)?;
        if self.topology.is_collective() && matches!(*self.stage.lock(), Stage::Initialized(_)) {
            self.init_worker()?;
        }
        match &*self.stage.lock() {
            Stage::Connected { cluster, .. } => Ok(Others::Servers(cluster.clone())),
            Stage::InGroup(group) => Ok(Others::Ranks(group.clone())),
            Stage::TrainingLocally => Ok(Others::Nobody),
            Stage::Initialized(_) | Stage::ServerReady(_) => Err(Error::TooEarly { call, missing: "init_worker" }),
            Stage::Ended => Err(Error::TooLate { call, after: "stop_worker" }),
        }
    }

    fn last_call(&self, stage: &Stage) -> &'static str {
        match (stage, self.topology.role()) {
            (Stage::Ended, Role::Server) => "run_server",
            (Stage::Ended, Role::Worker) => "stop_worker",
            _ => "init_worker",
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, and panics inside another runtime.
        if let Stage::Connected { runtime, .. } = std::mem::replace(self.stage.get_mut(), Stage::Ended) {
            runtime.shutdown_background();
        }
    }
}

/// Stops a server, or a wait for servers, from another thread.
#[derive(Clone)]
pub struct StopHandle {
    state: Arc<State>,
    interrupted: watch::Sender<bool>,
}

impl StopHandle {
    /// Requests a stop. On a server [`Fleet::run_server`] returns; a worker that waits for servers gives up.
    pub fn stop(&self) {
        self.state.stop();
        self.interrupted.send_replace(true);
    }
}
