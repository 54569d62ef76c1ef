//! What a batch costs on this machine, measured: a server and a worker that computes nothing, over loopback sockets.
//!
//! The planned batch is measured with one server. With more servers its content is divided among them, and each has messages of
//! its own. What these cost is measured with batches of a single key and a single parameter, once with one server and once with
//! several. Processor time is measured per thread, so that other programs on the machine matter little.

use std::sync::Arc;
use std::time::{Duration, Instant};

use openfleet_core::strategy::Strategy;
use openfleet_core::topology::{Endpoint, Incarnation};
use openfleet_dist::client::Tcp;
use openfleet_dist::communicator::Worker;
use openfleet_dist::handshake::{Secret, fresh_nonce};
use openfleet_dist::session::Identity;
use openfleet_dist::{ClientConfig, Cluster, Link, Server, ServerConfig, State};
use openfleet_table::DenseSpec;
use tokio::runtime::Runtime;
use tracing::subscriber::NoSubscriber;

use super::arithmetic::{Cost, Costs};
use crate::error::{Error, Result};
use crate::load::{Load, LoadStage, LoadWorker};

/// Threads of the server have this name, which is how their processor time is told from the worker's.
const SERVER_THREAD: &str = "plan-server";
/// Rows of the table: enough that they do not fit into a cache, and few enough to be created in a moment.
const ROWS: u64 = 300_000;
/// Different batches.
const BATCHES: usize = 32;
/// How long each load is pulled, and then trained.
const TIME: Duration = Duration::from_millis(400);
/// A pause where a worker would compute: a thread that slept costs more to wake, as in a real job.
const PAUSE: Duration = Duration::from_millis(2);
/// Servers of the small batches that are compared with those of one server.
const SEVERAL: usize = 4;

/// Measures the costs of a batch.
pub(super) fn measure(load: &Load, strategy: Strategy) -> Result<Costs> {
    // On a busy machine the worker would warn of a slow link.
    tracing::subscriber::with_default(NoSubscriber::new(), || measure_all(load, strategy))
}

fn measure_all(load: &Load, strategy: Strategy) -> Result<Costs> {
    let planned = Load { rows: load.rows.min(ROWS), ..load.clone() };
    let smallest = smallest(&planned);
    let one = measure_with(&smallest, 1, strategy)?;
    let several = measure_with(&smallest, SEVERAL, strategy)?;
    let batch = measure_with(&planned, 1, strategy)?;
    // A batch has two messages per server: a pull and a push.
    let message = several.both.minus(one.both).times(0.5 / (SEVERAL - 1) as f64);
    Ok(Costs {
        pull: batch.pull.minus(message),
        push: batch.both.minus(batch.pull).minus(message),
        message,
        wake_up: (one.pull_seconds - one.pull.total()).max(0.0),
    })
}

/// The same tables, with batches of one key and one dense parameter of one float.
fn smallest(load: &Load) -> Load {
    let stages = load.stages.iter().map(|stage| LoadStage { keys: 1, ..stage.clone() }).collect();
    let one = |(name, spec): &(String, DenseSpec)| (name.clone(), DenseSpec { shape: vec![1], ..spec.clone() });
    let dense = load.dense.first().map(one).into_iter().collect();
    Load { sparse: load.sparse.clone(), dense, stages, rows: load.rows.min(1000) }
}

/// Costs of a load.
struct Measured {
    /// Of a pull alone.
    pull: Cost,
    /// The time from the request of a pull to its end.
    pull_seconds: f64,
    /// Of a whole batch.
    both: Cost,
}

fn measure_with(load: &Load, servers: usize, strategy: Strategy) -> Result<Measured> {
    let job = RunningJob::start(servers, strategy)?;
    let cluster = job.worker();
    let mut worker = LoadWorker::new(&cluster, load, BATCHES, 1)?;
    worker.fill(0, 1)?;
    worker.begin()?;
    // The first batches grow buffers, and the first reply to a push has full values.
    for _ in 0..BATCHES {
        worker.batch(PAUSE)?;
    }
    let mut pull_seconds = Vec::new();
    let pull = repeat(|| {
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        worker.pull()?;
        pull_seconds.push(begun.elapsed().as_secs_f64());
        Ok(())
    })?;
    let both = repeat(|| Ok(worker.batch(PAUSE)?))?;
    worker.finish()?;
    cluster.close()?;
    job.end();
    pull_seconds.sort_unstable_by(f64::total_cmp);
    Ok(Measured { pull, pull_seconds: pull_seconds[pull_seconds.len() / 2], both })
}

/// Repeats work for a while, and returns the mean cost of one.
fn repeat(mut work: impl FnMut() -> Result<()>) -> Result<Cost> {
    let (started, before) = (Instant::now(), processor_seconds());
    let mut count = 0;
    while started.elapsed() < TIME || count < 3 {
        work()?;
        count += 1;
    }
    Ok(processor_seconds().minus(before).times(1.0 / f64::from(count)))
}

/// Servers and the sockets of a worker. The servers share threads, which are not those of the worker.
struct RunningJob {
    servers: Runtime,
    clients: Runtime,
    endpoints: Vec<Endpoint>,
    secret: Secret,
    strategy: Strategy,
}

impl RunningJob {
    fn start(count: usize, strategy: Strategy) -> Result<Self> {
        let runtime = |name: &str, threads: usize| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads).thread_name(name).enable_all().build()
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let servers = runtime(SERVER_THREAD, cores).map_err(|source| Error::Runtime { source })?;
        let clients =
            runtime("plan-worker", strategy.thread_pool_size()).map_err(|source| Error::Runtime { source })?;
        let secret = Secret::new(fresh_nonce());
        let mut endpoints = Vec::with_capacity(count);
        for _ in 0..count {
            let config = ServerConfig { secret: secret.clone(), ..ServerConfig::default() };
            let server = servers.block_on(Server::bind("127.0.0.1", 0, config, Arc::new(State::new())))?;
            endpoints.push(server.endpoint()?);
            servers.spawn(server.run());
        }
        Ok(RunningJob { servers, clients, endpoints, secret, strategy })
    }

    fn worker(&self) -> Cluster {
        let link = |endpoint: &Endpoint| {
            let (job, secret) = (ServerConfig::default().job, self.secret.clone());
            let config = ClientConfig::new(Identity { job, secret, rank: 0, incarnation: Incarnation(1) });
            Link::remote(self.clients.handle(), endpoint.clone(), config, Arc::new(Tcp))
        };
        let links = self.endpoints.iter().map(link).collect();
        Cluster::new(links, Worker { rank: 0, count: 1, threads: 1 }, self.strategy)
    }

    fn end(self) {
        self.clients.shutdown_background();
        self.servers.shutdown_background();
    }
}

/// Whether this system tells the processor time of each thread.
pub(super) fn is_possible() -> bool {
    std::fs::read_to_string("/proc/self/schedstat").is_ok()
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
