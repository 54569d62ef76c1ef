//! `Fleet`: one program for every process of a job.
//!
//! ```text
//! init -> distributed_optimizer -+- server: init_server -> run_server
//!                                +- worker: init_worker -> train, barrier_worker, all_reduce, ... -> stop_worker
//! ```
//!
//! A role maker says which of the two this process is; with no servers at all the same calls train in this process, its
//! tables inside it. A call in the wrong order or role is an error that names what is missing. There is nothing global
//! here: a whole job of `Fleet`s fits into one test. What is said to people goes through one [`Voice`]; what travels is the
//! dist room's affair, what is computed the engine's.

mod metrics;
mod optimizer;
mod reporting;
mod util;
mod voice;
mod waiting;

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use openfleet_core::strategy::{Strategy, StrategyOptions};
use openfleet_core::topology::{Endpoint, Role, Topology};
use openfleet_dist::client::{Connector, Tcp};
use openfleet_dist::communicator::Worker;
use openfleet_dist::request::heartbeat::Heartbeat;
use openfleet_dist::session::Identity;
use openfleet_dist::{
    ClientConfig, Cluster, Link, LoadOptions, Reach, Reduce, Resume, SaveOptions, Server, ServerConfig, Shrink, State,
    reach,
};
use openfleet_engine::dataset::InMemoryDataset;
use openfleet_engine::{Executor, Minimize, Program, Scope};
use openfleet_table::Shrunk;
use openfleet_table::checkpoint::Manifest;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use self::reporting::{Report, Watch};
pub use metrics::Metrics;
pub use optimizer::DistributedOptimizer;
pub use util::Util;
pub use voice::Voice;

use crate::error::{Error, Result};
use crate::job_file::JobFile;
use crate::progress::Progress;
use crate::role::{self, Assignment, ReservedPort, RoleMaker, Settings};
use crate::variables::Variables;

/// One process of a job, whatever its role.
///
/// ```
/// use std::sync::Arc;
///
/// use openfleet::fleet::{Fleet, Surroundings};
/// use openfleet_core::strategy::StrategyOptions;
/// use openfleet_engine::{Minimize, Scope};
/// use openfleet_table::{Optimizer, Sgd};
///
/// // `Fleet::init(None)` reads the environment; here it is empty, so this process trains alone.
/// let fleet = Fleet::init_in(None, Surroundings::quiet([]))?;
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
    /// Whether private addresses are allowed without a secret.
    trusts_private_network: bool,
    voice: Voice,
    connector: Arc<dyn Connector>,
    strategy: Mutex<Option<Strategy>>,
    /// The program that the job trains, once its optimizer was given one.
    trained: Arc<Mutex<Option<Arc<Program>>>>,
    stage: Mutex<Stage>,
    /// A server's tables; a worker has none.
    state: Arc<State>,
    /// Ends a wait for servers.
    interrupted: watch::Sender<bool>,
    /// Without servers: where the tables are.
    scopes: Mutex<Vec<Weak<Scope>>>,
    /// What the launcher is told.
    report: Report,
}

/// Who can reach a server, where the list has its address and not a name.
fn reach_of(server: &Endpoint) -> Option<Reach> {
    server.host().parse::<IpAddr>().ok().map(reach)
}

/// How long a worker that leaves waits for the last answers.
const LAST: Duration = Duration::from_secs(1);

/// How far this process has come.
enum Stage {
    /// After `init`.
    Begun(Option<ReservedPort>),
    /// After `init_server`.
    ServerReady(Option<ReservedPort>),
    /// After `init_worker`, without servers.
    WorkingAlone,
    /// After `init_worker`.
    Working { cluster: Arc<Cluster>, links: Vec<Link>, runtime: Runtime, watch: Watch },
    /// After `run_server` or `stop_worker`.
    Over,
}

/// What a `Fleet` finds around it: by default this process's own, in a test whatever the test wants.
pub struct Surroundings {
    /// The environment.
    pub variables: Variables,
    /// Where lines for people go.
    pub voice: Voice,
    /// How servers are reached.
    pub connector: Arc<dyn Connector>,
}

impl Default for Surroundings {
    fn default() -> Self {
        Surroundings { variables: Variables::of_process(), voice: Voice::stderr(), connector: Arc::new(Tcp) }
    }
}

impl Surroundings {
    /// These variables and no others, and nobody to listen.
    pub fn quiet<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let variables = variables.into_iter().collect();
        Surroundings { variables, voice: Voice::silent(), connector: Arc::new(Tcp) }
    }
}

impl Fleet {
    /// Finds out what this process is: from a role maker, or from its environment. One line on standard error says what it
    /// found, and where.
    pub fn init(role_maker: Option<&dyn RoleMaker>) -> Result<Self> {
        Fleet::init_in(role_maker, Surroundings::default())
    }

    /// [`Fleet::init`] in surroundings of the caller's choice.
    pub fn init_in(role_maker: Option<&dyn RoleMaker>, surroundings: Surroundings) -> Result<Self> {
        let Surroundings { variables, voice, connector } = surroundings;
        let mut settings = Settings::read(&variables)?;
        let chosen;
        let role_maker = match role_maker {
            Some(given) => given,
            None => {
                chosen = role::choose(&variables);
                chosen.as_ref()
            }
        };
        let Assignment { topology, bind, secret, reserved, trusts_private_network } =
            role_maker.assign(&variables, &settings)?;
        voice.say(&format!("{topology}: {}", role_maker.source(&variables)));
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
            voice,
            connector,
            strategy: Mutex::default(),
            trained: Arc::default(),
            stage: Mutex::new(Stage::Begun(reserved)),
            state,
            interrupted: watch::channel(false).0,
            scopes: Mutex::default(),
        })
    }

    /// Waits for servers this long, rather than what `OPENFLEET_WAIT_SECONDS` says (900 s where it says nothing).
    #[must_use]
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.settings.wait_limit = limit;
        self
    }

    /// Trains with this many threads on each worker, rather than what `CPU_NUM` says (1 where it says nothing). The same
    /// on every worker.
    #[must_use]
    pub fn threads(mut self, threads: u32) -> Self {
        self.settings.threads = threads.max(1);
        self
    }

    /// Training threads of each worker.
    pub fn thread_num(&self) -> usize {
        self.settings.threads as usize
    }

    /// Tells the launcher how this process is doing, if there is one that wants to know. Not worth failing for.
    pub fn tell_launcher(&self, state: &str, samples: Option<u64>, samples_per_second: Option<f64>) {
        self.report.update(|progress| {
            progress.state = Some(state.to_owned());
            (progress.samples, progress.samples_per_second) = (samples, samples_per_second);
        });
    }

    /// Whether the launcher is ending the job: a process that is asked to stop then may say goodbye, and one that is asked for
    /// another reason just ends, because it will be started again. Without a launcher nobody would start it again.
    pub(crate) fn is_job_ending(&self) -> bool {
        self.settings.job_file.as_ref().is_none_or(|file| JobFile::read(file).ending)
    }

    /// Who exists, where, and who this is.
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

    /// Whether this is the worker that speaks for all of them.
    pub fn is_first_worker(&self) -> bool {
        self.topology.is_first_worker()
    }

    /// This worker's rank.
    pub fn worker_index(&self) -> Result<usize> {
        self.only_for("worker_index", Role::Worker)?;
        Ok(self.topology.rank())
    }

    /// How many workers there are.
    pub fn worker_num(&self) -> usize {
        self.topology.worker_count()
    }

    /// This server's rank.
    pub fn server_index(&self) -> Result<usize> {
        self.only_for("server_index", Role::Server)?;
        Ok(self.topology.rank())
    }

    /// How many servers there are; 0 where this process trains alone.
    pub fn server_num(&self) -> usize {
        self.topology.server_count()
    }

    /// Where the servers are, in rank order.
    pub fn server_endpoints(&self) -> &[Endpoint] {
        self.topology.servers()
    }

    /// Where the workers are, in rank order, or nothing where it was not said.
    pub fn worker_endpoints(&self) -> &[Endpoint] {
        self.topology.worker_endpoints()
    }

    /// Chooses how the job trains. One line says what the options mean. A second choice replaces the first, until
    /// [`Fleet::init_worker`].
    pub fn distributed_optimizer(
        &self,
        optimizer: Minimize,
        strategy: &StrategyOptions,
    ) -> Result<DistributedOptimizer> {
        let strategy = Strategy::resolve(strategy)?;
        let stage = self.stage.lock();
        if matches!(*stage, Stage::Working { .. } | Stage::WorkingAlone | Stage::Over) {
            return Err(Error::TooLate { call: "distributed_optimizer", after: self.latest(&stage) });
        }
        // A server does as the workers ask.
        match self.is_worker() {
            true if self.trains_alone() => {
                self.voice.say(&format!("{strategy}; without servers it trains in this process"));
            }
            true => self.voice.say(&format!("{}: {strategy}", self.name())),
            false => {}
        }
        *self.strategy.lock() = Some(strategy);
        Ok(DistributedOptimizer::new(optimizer, strategy, self.trained.clone()))
    }

    /// Prepares a server. It needs no program: workers say which tables they want.
    ///
    /// `address` is a checkpoint to begin from, a path or an address in a bucket, written by any number of servers: tables take
    /// their rows and the optimizer's state from it when the first worker asks for them. A program that does not fit is told so
    /// then. Data is read from the start, unless this run itself wrote the checkpoint: a server that is started again by the
    /// launcher continues from the newest one of its run, whatever `address` says.
    pub fn init_server(&self, address: Option<&str>) -> Result<()> {
        self.begin_server(address, Resume::Values)
    }

    /// [`Fleet::init_server`] that continues the run which wrote the checkpoint, if there is one: workers skip the data that it
    /// has learnt from.
    pub fn resume_server(&self, address: Option<&str>) -> Result<()> {
        self.begin_server(address, Resume::Run)
    }

    fn begin_server(&self, address: Option<&str>, resume: Resume) -> Result<()> {
        self.only_for("init_server", Role::Server)?;
        let newest = self.settings.resume.as_deref();
        if let Some(address) = newest.or(address) {
            let resume = if newest.is_some() { Resume::Values } else { resume };
            let name = self.name();
            self.voice.say(&match self.state.resume_from(address, resume)? {
                Some(manifest) => format!("{name}: begins from step {} of `{address}`", manifest.step),
                None => format!(
                    "{name}: begins without `{address}`, which this run saved before its workers had sent all that they had learnt"
                ),
            });
        }
        let mut stage = self.stage.lock();
        match &mut *stage {
            Stage::Begun(reserved) => {
                let reserved = reserved.take();
                *stage = Stage::ServerReady(reserved);
                Ok(())
            }
            Stage::Over => Err(Error::TooLate { call: "init_server", after: "run_server" }),
            _ => Ok(()),
        }
    }

    /// Listens, and serves until all workers have left or somebody calls [`StopHandle::stop`].
    pub fn run_server(&self) -> Result<()> {
        self.only_for("run_server", Role::Server)?;
        let reserved = {
            let mut stage = self.stage.lock();
            match std::mem::replace(&mut *stage, Stage::Over) {
                Stage::ServerReady(reserved) => reserved,
                before @ Stage::Begun(_) => {
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
            // Given up at the last moment, so that nobody else could take it.
            drop(reserved);
            let server = Server::bind(host, endpoint.port(), config, self.state.clone()).await?;
            let at = server.endpoint()?;
            self.voice.say(&format!("{}: listening on {at}", self.name()));
            self.voice.say_as_paddle(&format!("Server listening on {at} selected port: {}", at.port()));
            self.warn_without_secret(&[at]);
            server.run().await
        });
        runtime.shutdown_background();
        drop(watch);
        ended?;
        if self.state.is_deserted() {
            return Err(Error::Deserted);
        }
        self.voice.say(&format!("{}: ends", self.name()));
        if self.is_done() {
            // Otherwise the launcher would take it for a server that left too early.
            self.tell_launcher(Progress::DONE, None, None);
        }
        Ok(())
    }

    /// Whether every worker of this server has departed. A server that ended otherwise was asked to.
    pub fn is_done(&self) -> bool {
        self.state.is_done()
    }

    /// Ends [`Fleet::run_server`] or a wait for servers from another thread: a signal handler's, say.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle { state: self.state.clone(), interrupted: self.interrupted.clone() }
    }

    /// Waits for the servers and connects to them. Again is as good as once.
    ///
    /// While a server is not there, two lines every three seconds say which; after the limit an error does.
    pub fn init_worker(&self) -> Result<()> {
        self.only_for("init_worker", Role::Worker)?;
        let mut stage = self.stage.lock();
        match *stage {
            Stage::Working { .. } | Stage::WorkingAlone => return Ok(()),
            Stage::Over => return Err(Error::TooLate { call: "init_worker", after: "stop_worker" }),
            Stage::Begun(_) | Stage::ServerReady(_) => {}
        }
        let Some(strategy) = *self.strategy.lock() else {
            return Err(Error::TooEarly { call: "init_worker", missing: "distributed_optimizer" });
        };
        if self.trains_alone() {
            *stage = Stage::WorkingAlone;
            return Ok(());
        }
        if self.topology.is_collective() {
            return Err(Error::Unavailable { what: "training without servers on several workers" });
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
            let waiting = waiting::for_servers(&links, self.settings.wait_limit, &self.voice, interrupted);
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
        // Whoever does not wait for servers enters with its first request.
        let entered = if strategy.launch_barrier() { cluster.progress() } else { Ok((0, Vec::new())) };
        let (passes, batches) = match entered {
            Ok(progress) => progress,
            Err(error) => {
                runtime.shutdown_background();
                return Err(error.into());
            }
        };
        self.voice.say(&format!("{}: communicator started, trainer id {}", self.name(), worker.rank));
        self.voice.say_as_paddle("Communicator start");
        self.voice.say_as_paddle(&format!("init rpc client with trainer_id {}", worker.rank));
        if passes > 0 || batches.iter().any(|&batches| batches > 0) {
            let batches: u64 = batches.iter().sum();
            let name = self.name();
            self.voice.say(&format!(
                "{name}: continues after {passes} whole passes; {batches} batches are not trained again"
            ));
        }
        let servers = self.topology.servers().to_vec();
        let watch = Watch::of_worker(self.report.clone(), config.notices.clone(), servers);
        *stage = Stage::Working { cluster, links, runtime, watch };
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

    /// The servers as this worker sees them, or `None` where it trains alone.
    pub fn cluster(&self) -> Result<Option<Arc<Cluster>>> {
        self.working("cluster")
    }

    /// An executor whose tables are where this job keeps them: on the servers, or in the scope.
    pub fn executor(&self, scope: Arc<Scope>) -> Result<Executor> {
        match self.working("executor")? {
            Some(cluster) => {
                let executor = Executor::on_cluster(scope, cluster);
                Ok(match self.trained.lock().clone() {
                    Some(program) => executor.with_tables_of(program),
                    None => executor,
                })
            }
            None => {
                let mut scopes = self.scopes.lock();
                scopes.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&Arc::downgrade(&scope)));
                scopes.push(Arc::downgrade(&scope));
                Ok(Executor::new(scope))
            }
        }
    }

    /// This worker is done: what is queued is sent, and the servers hear that it leaves. When all workers have left they
    /// end. Again does nothing.
    pub fn stop_worker(&self) -> Result<()> {
        self.only_for("stop_worker", Role::Worker)?;
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Over) {
            Stage::Working { cluster, links, runtime, watch } => {
                let closed = cluster.close();
                drop(watch);
                // Whoever hangs up while an answer is on its way looks as if its connection broke, and is waited for.
                let last: Vec<_> = links.iter().filter_map(|link| link.send_within(&Heartbeat, LAST).ok()).collect();
                // A server that has ended already is as good.
                last.into_iter().for_each(|answer| drop(answer.wait()));
                if closed.is_ok() {
                    // From here on this process needs no server.
                    self.tell_launcher(Progress::DONE, None, None);
                }
                // Hangs up, even if an executor still has the cluster: the servers wait for that.
                runtime.shutdown_background();
                Ok(closed?)
            }
            before @ (Stage::Begun(_) | Stage::ServerReady(_)) => {
                *stage = before;
                Err(Error::TooEarly { call: "stop_worker", missing: "init_worker" })
            }
            Stage::WorkingAlone | Stage::Over => Ok(()),
        }
    }

    /// Waits until every worker that has not left has come here too.
    pub fn barrier_worker(&self) -> Result<()> {
        match self.working("barrier_worker")? {
            Some(cluster) => Ok(cluster.barrier()?),
            None => Ok(()),
        }
    }

    /// Makes the values of all workers one, position by position: their sum, say. All workers call it, with as many
    /// values.
    pub fn all_reduce(&self, op: Reduce, values: &mut [f64]) -> Result<()> {
        match self.working("all_reduce")? {
            Some(cluster) => Ok(cluster.all_reduce(op, values)?),
            None => Ok(()),
        }
    }

    /// Deals the rows of all workers' datasets to all workers at random, each row to one. All workers that have not left call
    /// it; one without files may have loaded nothing. Rows travel over the servers, which hold a few megabytes a worker at a
    /// time. After an error the dataset is empty.
    pub fn global_shuffle(&self, dataset: &mut InMemoryDataset, seed: u64) -> Result<()> {
        let Some(cluster) = self.working("global_shuffle")? else {
            return Ok(dataset.local_shuffle(seed)?);
        };
        // Who is still here: each marks its own place.
        let worker = cluster.worker();
        let mut present = vec![0.0; worker.count as usize];
        present[worker.rank as usize] = 1.0;
        cluster.all_reduce(Reduce::Sum, &mut present)?;
        let members: Vec<u32> = (0..worker.count).filter(|&rank| present[rank as usize] > 0.0).collect();
        let rank = members.iter().position(|&member| member == worker.rank).unwrap_or(0);
        let exchange = |parts: Vec<Vec<u8>>| -> Result<Vec<Vec<u8>>> {
            let parts: Vec<(u32, Vec<u8>)> = members.iter().copied().zip(parts).collect();
            Ok(cluster.all_to_all(&parts)?.into_iter().map(|(_, part)| part).collect())
        };
        dataset.global_shuffle(seed, rank, members.len(), exchange)
    }

    /// Saves every table of the job with its optimizer's state and what has been applied, from one moment, while training
    /// goes on. The first worker does it for the job; the others need not call it, and get `None` if they do. The servers
    /// write: the path or the bucket is theirs, and all of them have to see it. A checkpoint that stands there is replaced, and stays
    /// as it was if this fails. Without servers it is the parameters, tables and states of `program`, in the same format.
    pub fn save_persistables(
        &self,
        executor: &mut Executor,
        program: &Program,
        address: &str,
    ) -> Result<Option<Manifest>> {
        self.save_persistables_with(executor, program, address, &SaveOptions::default())
    }

    /// [`Fleet::save_persistables`] of what has changed, or of some tables, with a choice about replacing, and with something
    /// to be kept with it.
    pub fn save_persistables_with(
        &self,
        executor: &mut Executor,
        program: &Program,
        address: &str,
        options: &SaveOptions,
    ) -> Result<Option<Manifest>> {
        self.working("save_persistables")?;
        if !self.is_first_worker() {
            return Ok(None);
        }
        let options = SaveOptions { job: self.settings.job.to_string(), ..options.clone() };
        Ok(Some(executor.save(program, address, &options)?))
    }

    /// Saves one table or parameter of the job, by name, as [`Fleet::save_persistables`] saves all.
    pub fn save_one_table(
        &self,
        executor: &mut Executor,
        program: &Program,
        name: &str,
        address: &str,
    ) -> Result<Option<Manifest>> {
        let options = SaveOptions { only: vec![name.to_owned()], ..SaveOptions::default() };
        self.save_persistables_with(executor, program, address, &options)
    }

    /// Takes every table from a checkpoint: those that exist, or else those that the first program makes. The first worker
    /// does it for the job, before training or between two passes; the others need not call it. `partial` leaves out what
    /// does not fit, which is an error otherwise.
    pub fn load_model(&self, executor: &mut Executor, program: &Program, address: &str, partial: bool) -> Result<()> {
        self.working("load_model")?;
        match self.is_first_worker() {
            true => Ok(executor.load(program, address, LoadOptions { partial, ..LoadOptions::default() })?),
            false => Ok(()),
        }
    }

    /// Lets the rows of sparse tables fade, and removes those that no longer earn their place. The first worker does it for
    /// the job and is told how many went; the others need not call it, and get `None` if they do.
    pub fn shrink(&self, shrink: &Shrink) -> Result<Option<Shrunk>> {
        match self.working("shrink")? {
            _ if !self.is_first_worker() => Ok(None),
            Some(cluster) => Ok(Some(cluster.shrink(shrink)?)),
            None => self.shrink_alone(shrink).map(Some),
        }
    }

    fn shrink_alone(&self, shrink: &Shrink) -> Result<Shrunk> {
        let (mut total, mut names) = (Shrunk::default(), Vec::new());
        let mut found = shrink.table.is_none();
        for scope in self.scopes.lock().iter().filter_map(Weak::upgrade) {
            for name in scope.names() {
                let Some(table) = scope.sparse(&name) else { continue };
                if shrink.table.as_ref().is_none_or(|wanted| *wanted == name) {
                    total.merge(shrink.apply(&table));
                    found = true;
                }
                names.push(format!("`{name}`"));
            }
        }
        match &shrink.table {
            Some(table) if !found => {
                Err(openfleet_dist::Error::NoSuchTable { table: table.clone(), names: names.join(", ") }.into())
            }
            _ => Ok(total),
        }
    }

    /// This worker's part of a list of files: contiguous runs in rank order, of which the first have one more. May be
    /// empty.
    pub fn split_files<'a, T>(&self, files: &'a [T]) -> Result<&'a [T]> {
        self.only_for("split_files", Role::Worker)?;
        Ok(util::part(files, self.topology.rank(), self.topology.worker_count()))
    }

    /// Small things that scripts need.
    pub fn util(&self) -> Util<'_> {
        Util::new(self)
    }

    /// Metrics over all workers.
    pub fn metrics(&self) -> Metrics<'_> {
        Metrics::new(self)
    }

    /// Where a server binds: as told, else at its own place in the list. A name is for others: on the machine itself it may
    /// mean loopback (Debian's `/etc/hosts`), or nothing yet (a pod that has just started), so with a secret to protect it
    /// the server listens everywhere.
    fn bind_address<'a>(&'a self, endpoint: &'a Endpoint) -> &'a str {
        let host = endpoint.host();
        let is_name = host != "localhost" && host.parse::<IpAddr>().is_err();
        match &self.settings.bind {
            Some(address) => address,
            None if is_name && !self.settings.secret.is_empty() => "0.0.0.0",
            None => host,
        }
    }

    /// A worker without a secret: its servers would refuse to listen there, and it would wait for them in vain. Only addresses
    /// are judged; what a name means is the server's to find out.
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

    /// One line, where others than this machine's processes could take part in a job.
    fn warn_without_secret(&self, servers: &[Endpoint]) {
        let is_open = |server: &&Endpoint| server.host() != "localhost" && reach_of(server) != Some(Reach::Machine);
        if !self.settings.secret.is_empty() {
            return;
        }
        if let Some(server) = servers.iter().find(is_open) {
            self.voice.say(&format!(
                "{}: warning: there is no secret: whoever reaches {server} can read and change the tables; set \
                 `OPENFLEET_SECRET` to the same text for every process of the job",
                self.name()
            ));
        }
    }

    /// `worker 1 of 4`.
    fn name(&self) -> String {
        let count = if self.is_server() { self.server_num() } else { self.worker_num() };
        format!("{} {} of {count}", self.topology.role(), self.topology.rank())
    }

    /// Whether there is nobody else.
    fn trains_alone(&self) -> bool {
        self.topology.is_local() || (self.topology.is_collective() && self.worker_num() == 1)
    }

    fn only_for(&self, call: &'static str, role: Role) -> Result<()> {
        if self.topology.role() == role {
            return Ok(());
        }
        Err(Error::WrongRole { call, expected: role, got: self.topology.to_string() })
    }

    /// The cluster, between `init_worker` and `stop_worker`.
    fn working(&self, call: &'static str) -> Result<Option<Arc<Cluster>>> {
        self.only_for(call, Role::Worker)?;
        match &*self.stage.lock() {
            Stage::Working { cluster, .. } => Ok(Some(cluster.clone())),
            Stage::WorkingAlone => Ok(None),
            Stage::Begun(_) | Stage::ServerReady(_) => Err(Error::TooEarly { call, missing: "init_worker" }),
            Stage::Over => Err(Error::TooLate { call, after: "stop_worker" }),
        }
    }

    fn latest(&self, stage: &Stage) -> &'static str {
        match (stage, self.topology.role()) {
            (Stage::Over, Role::Server) => "run_server",
            (Stage::Over, Role::Worker) => "stop_worker",
            _ => "init_worker",
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, and panics inside another one.
        if let Stage::Working { runtime, .. } = std::mem::replace(self.stage.get_mut(), Stage::Over) {
            runtime.shutdown_background();
        }
    }
}

/// Ends a server, or a wait for servers, from another thread.
#[derive(Clone)]
pub struct StopHandle {
    state: Arc<State>,
    interrupted: watch::Sender<bool>,
}

impl StopHandle {
    /// Asks for the end. A server stops serving and [`Fleet::run_server`] returns; a worker that waits for servers gives
    /// up.
    pub fn stop(&self) {
        self.state.stop();
        self.interrupted.send_replace(true);
    }
}
