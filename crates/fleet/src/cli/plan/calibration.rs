//! What a batch costs on this machine, measured: a server and a worker that computes nothing, over loopback sockets.
//!
//! Two loads are measured. One is the planned batch; the other is a batch with a single key and a single parameter, whose cost
//! is that of its messages. What more servers cost follows from the second: the content is divided among them, and each has
//! messages of its own. Processor time is measured per thread, so that other programs on the machine matter little.

use std::sync::Arc;
use std::time::{Duration, Instant};

use openfleet_core::strategy::Strategy;
use openfleet_core::topology::Incarnation;
use openfleet_dist::client::Tcp;
use openfleet_dist::communicator::Worker;
use openfleet_dist::handshake::{Secret, fresh_nonce};
use openfleet_dist::session::Identity;
use openfleet_dist::{ClientConfig, Cluster, Link, Server, ServerConfig, State};
use openfleet_table::DenseSpec;
use tokio::runtime::Runtime;

use super::arithmetic::{Cost, Costs};
use crate::error::{Error, Result};
use crate::load::{Load, LoadStage, LoadWorker};

/// Threads of the server have this name, which is how their processor time is told from the worker's.
const SERVER_THREAD: &str = "plan-server";
/// Rows of the table: enough that they do not fit into a cache, and few enough to be created in a moment.
const ROWS: u64 = 400_000;
/// Different batches.
const BATCHES: usize = 32;
/// How long each load is pulled, and then trained.
const TIME: Duration = Duration::from_millis(400);
/// A pause where a worker would compute: a thread that slept costs more to wake, as in a real job.
const PAUSE: Duration = Duration::from_millis(2);

/// Measures the costs of a batch.
pub(super) fn measure(load: &Load, strategy: Strategy) -> Result<Costs> {
    let planned = Load { rows: load.rows.min(ROWS), ..load.clone() };
    let smallest = smallest(&planned);
    let [small_pull, small_push] = costs_of(&smallest, strategy)?;
    let [pull, push] = costs_of(&planned, strategy)?;
    let cost = |cost: f64| cost.max(0.0);
    let minus = |large: Cost, small: Cost| Cost {
        worker: cost(large.worker - small.worker),
        server: cost(large.server - small.server),
    };
    let message = Cost {
        worker: (small_pull.cost.worker + small_push.cost.worker) / 2.0,
        server: (small_pull.cost.server + small_push.cost.server) / 2.0,
    };
    Ok(Costs {
        pull: minus(pull.cost, message),
        push: minus(push.cost, message),
        message,
        wake_up: cost(small_pull.elapsed - small_pull.cost.total()),
    })
}

/// The same tables, with batches of one key and one dense parameter of one float.
fn smallest(load: &Load) -> Load {
    let stages = load.stages.iter().map(|stage| LoadStage { keys: 1, ..stage.clone() }).collect();
    let one = |(name, spec): &(String, DenseSpec)| (name.clone(), DenseSpec { shape: vec![1], ..spec.clone() });
    Load { stages, dense: load.dense.first().map(one).into_iter().collect(), ..load.clone() }
}

/// What a pull or a push costs, and how long it takes.
struct Measured {
    cost: Cost,
    elapsed: f64,
}

/// Costs of a pull and of a push.
fn costs_of(load: &Load, strategy: Strategy) -> Result<[Measured; 2]> {
    let job = RunningJob::start(strategy)?;
    let cluster = job.worker();
    let mut worker = LoadWorker::new(&cluster, load, BATCHES, 1)?;
    worker.fill(0, 1)?;
    worker.begin()?;
    // The first batches grow buffers, and the first reply to a push has full values.
    for _ in 0..BATCHES {
        worker.batch(Duration::ZERO)?;
    }
    let pull = repeat(|| worker.pull())?;
    let both = repeat(|| worker.batch(Duration::ZERO))?;
    worker.finish()?;
    cluster.close()?;
    job.end();
    let cost = Cost {
        worker: (both.cost.worker - pull.cost.worker).max(0.0),
        server: (both.cost.server - pull.cost.server).max(0.0),
    };
    Ok([Measured { ..pull }, Measured { cost, elapsed: both.elapsed - pull.elapsed }])
}

/// Repeats work with pauses, and returns the mean cost of one.
fn repeat(mut work: impl FnMut() -> openfleet_dist::Result<()>) -> Result<Measured> {
    let (started, before) = (Instant::now(), processor_seconds());
    let (mut count, mut elapsed) = (0.0, 0.0);
    while started.elapsed() < TIME || count < 3.0 {
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        work()?;
        elapsed += begun.elapsed().as_secs_f64();
        count += 1.0;
    }
    let after = processor_seconds();
    let cost = Cost {
        worker: (after.worker - before.worker).max(0.0) / count,
        server: (after.server - before.server).max(0.0) / count,
    };
    Ok(Measured { cost, elapsed: elapsed / count })
}

/// A server and the sockets of a worker, each with threads of its own.
struct RunningJob {
    servers: Runtime,
    clients: Runtime,
    endpoint: openfleet_core::Endpoint,
    secret: Secret,
    strategy: Strategy,
}

impl RunningJob {
    fn start(strategy: Strategy) -> Result<Self> {
        let runtime = |name: &str, threads: usize| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads).thread_name(name).enable_all().build()
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let servers = runtime(SERVER_THREAD, cores).map_err(|source| Error::Runtime { source })?;
        let clients =
            runtime("plan-worker", strategy.thread_pool_size()).map_err(|source| Error::Runtime { source })?;
        let secret = Secret::new(fresh_nonce());
        let config = ServerConfig { secret: secret.clone(), ..ServerConfig::default() };
        let server = servers.block_on(Server::bind("127.0.0.1", 0, config, Arc::new(State::new())))?;
        let endpoint = server.endpoint()?;
        servers.spawn(server.run());
        Ok(RunningJob { servers, clients, endpoint, secret, strategy })
    }

    fn worker(&self) -> Cluster {
        let (job, secret) = (ServerConfig::default().job, self.secret.clone());
        let identity = Identity { job, secret, rank: 0, incarnation: Incarnation(1) };
        let config = ClientConfig::new(identity);
        let link = Link::remote(self.clients.handle(), self.endpoint.clone(), config, Arc::new(Tcp));
        Cluster::new(vec![link], Worker { rank: 0, count: 1, threads: 1 }, self.strategy)
    }

    fn end(self) {
        self.clients.shutdown_background();
        self.servers.shutdown_background();
    }
}

/// Whether this system tells the processor time of each thread.
pub(super) fn is_possible() -> bool {
    processor_seconds().worker > 0.0
}

/// Processor time of the server's threads and of all others so far. Linux only; elsewhere zeros.
fn processor_seconds() -> Cost {
    let mut sum = Cost::default();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return sum };
    for thread in threads.flatten() {
        let read = |file: &str| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        // Nanoseconds on a processor, nanoseconds of waiting for one, number of time slices.
        let nanoseconds = read("schedstat").split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
        let seconds = nanoseconds.unwrap_or(0.0) / 1e9;
        match read("comm").trim() == SERVER_THREAD {
            true => sum.server += seconds,
            false => sum.worker += seconds,
        }
    }
    sum
}
