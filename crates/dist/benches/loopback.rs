//! The cost of a server over loopback sockets: `cargo bench -p openfleet-dist`.
//!
//! Processor time, not wall time: client and server share the cores of a small machine, and a server core is what is paid
//! for. Two figures: unique rows a second of a server's core, pulled and pushed back with AdaGrad in batches of a Criteo
//! shape; and a pull of 1 MB of dense values beside a bare socket that carries the same bytes. Nothing here is asserted.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench that cannot go on ends, and its lines are the result"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use openfleet_core::WorkId;
use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_core::topology::{Endpoint, Incarnation};
use openfleet_dist::client::Tcp;
use openfleet_dist::communicator::{Communicator, Missing, Worker};
use openfleet_dist::handshake::Secret;
use openfleet_dist::request::pull_dense::PullDense;
use openfleet_dist::session::Identity;
use openfleet_dist::stage::{DenseStage, Lookup, SparseStage};
use openfleet_dist::{ClientConfig, Cluster, Link, Server, ServerConfig, State};
use openfleet_table::{
    Accessor, Adagrad, Admission, DenseSpec, Initializer, NonFinite, Optimizer, Schedule, SparseSpec,
};
use openfleet_testkit::bench::size;

const DIM: usize = 10;
/// Ids of 512 rows with 26 slots, of which a third are different ones.
const IDS: usize = 512 * 26;
const MEGABYTE: usize = 1 << 18;

fn main() {
    let server = Running::start();
    let cluster = server.cluster();
    let sparse = [("rows".to_owned(), sparse_spec())];
    let dense = [("values".to_owned(), dense_spec(), vec![0.5; MEGABYTE])];
    let communicator = cluster.communicator(&sparse, &dense).unwrap();
    rows(communicator.as_ref());
    one_megabyte(&server);
    cluster.close().unwrap();
}

/// A server with its own runtime of one thread.
struct Running {
    clients: tokio::runtime::Runtime,
    _servers: tokio::runtime::Runtime,
    endpoint: Endpoint,
    secret: Secret,
}

const SERVER_THREAD: &str = "of-server";

impl Running {
    fn start() -> Self {
        let runtime = |name: &str| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).thread_name(name).enable_all().build().unwrap()
        };
        let (servers, clients) = (runtime(SERVER_THREAD), runtime("of-client"));
        let secret = Secret::new("a bench's secret");
        let config = ServerConfig { secret: secret.clone(), ..ServerConfig::default() };
        let state = Arc::new(State::new());
        let server = servers.block_on(Server::bind("127.0.0.1", 0, config, state)).unwrap();
        let endpoint = server.endpoint().unwrap();
        servers.spawn(server.run());
        Running { clients, _servers: servers, endpoint, secret }
    }

    fn link(&self) -> Link {
        let job = ServerConfig::default().job;
        let identity = Identity { job, secret: self.secret.clone(), rank: 0, incarnation: Incarnation(1) };
        Link::remote(self.clients.handle(), self.endpoint.clone(), ClientConfig::new(identity), Arc::new(Tcp))
    }

    fn cluster(&self) -> Cluster {
        let mut options = StrategyOptions::for_mode(Mode::Async);
        options.independent_recv_thread = Some(false);
        let strategy = Strategy::resolve(&options).unwrap();
        Cluster::new(vec![self.link()], Worker { rank: 0, count: 1, threads: 1 }, strategy)
    }
}

fn rows(communicator: &dyn Communicator) {
    let mut stages: Vec<[SparseStage; 1]> = (0..64u64).map(|batch| [stage(batch)]).collect();
    let unique: usize = stages.iter().map(|[stage]| stage.unique.keys().len()).sum();
    // Not trained: only rows are sent.
    let mut dense = [DenseStage { values: vec![0.0; MEGABYTE], ..DenseStage::default() }];
    let mut step = 0;
    let mut round = || {
        for stage in &mut stages {
            communicator.pull_sparse(stage, Missing::Create).unwrap();
            communicator.push(WorkId::step(0, step), stage, &mut dense).unwrap();
            step += 1;
        }
    };
    round();
    let rounds = 20;
    let (started, before) = (Instant::now(), thread_seconds(SERVER_THREAD));
    (0..rounds).for_each(|_| round());
    let (wall, server_seconds) = (started.elapsed().as_secs_f64(), thread_seconds(SERVER_THREAD) - before);
    let rows = (rounds * unique) as f64;
    println!(
        "rows pulled and pushed (AdaGrad, dim {DIM}, {} unique of {IDS}): {:.2} M/s a server core, {:.2} M/s by the clock",
        unique / 64,
        rows / server_seconds / 1e6,
        rows / wall / 1e6
    );
}

fn one_megabyte(server: &Running) {
    let pulls = size(3000, 10);
    let link = server.link();
    let request = PullDense { blocks: vec![0] };
    let pull = || link.send(&request).unwrap().wait().unwrap();
    pull();
    let before = process_seconds();
    (0..pulls).for_each(|_| drop(pull()));
    let ours = process_seconds() - before;

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let sender = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let bytes = vec![7u8; 4 * MEGABYTE];
        let mut asked = [0u8; 32];
        while stream.read_exact(&mut asked).is_ok() {
            stream.write_all(&bytes).unwrap();
        }
    });
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut bytes = vec![0u8; 4 * MEGABYTE];
    let mut pull = || {
        stream.write_all(&[1; 32]).unwrap();
        stream.read_exact(&mut bytes).unwrap();
    };
    pull();
    let before = process_seconds();
    (0..pulls).for_each(|_| pull());
    let bare = process_seconds() - before;
    drop(stream);
    sender.join().unwrap();
    let micros = |seconds: f64| seconds / pulls as f64 * 1e6;
    println!(
        "1 MB of dense values: {:.0} us of processor time, a bare socket {:.0} us: {:.2} times",
        micros(ours),
        micros(bare),
        ours / bare
    );
}

fn stage(batch: u64) -> SparseStage {
    let mut stage = SparseStage::default();
    let draw = |at: usize| openfleet_core::key::mix(batch << 32 | at as u64);
    // The eighth power of a uniform draw: few ids are frequent, many are rare.
    let ids: Vec<u64> =
        (0..IDS).map(|at| (((draw(at) >> 11) as f64 / (1u64 << 53) as f64).powi(8) * 3e5) as u64).collect();
    stage.unique.start(IDS);
    stage.unique.add(&ids);
    let floats = stage.unique.keys().len() * DIM;
    let (rows, gradients) = (vec![0.0; floats], vec![0.01; floats]);
    stage.lookups = vec![Lookup { table: 0, dim: DIM, trained: true, rows, gradients }];
    stage
}

fn sparse_spec() -> SparseSpec {
    SparseSpec {
        dim: DIM,
        optimizer: Optimizer::Adagrad(Adagrad::default()),
        schedule: Schedule::Constant(1e-3),
        regularizer: None,
        initializer: Initializer::Uniform { low: -0.01, high: 0.01 },
        seed: 1,
        shards: openfleet_table::sparse::DEFAULT_SHARDS,
        accessor: Accessor::Plain,
        admission: Admission::All,
        capacity: None,
        non_finite: NonFinite::Skip,
        salted: false,
        storage: Default::default(),
    }
}

fn dense_spec() -> DenseSpec {
    DenseSpec {
        shape: vec![MEGABYTE],
        optimizer: Optimizer::Adagrad(Adagrad::default()),
        schedule: Schedule::Constant(1e-3),
        regularizer: None,
        non_finite: NonFinite::Skip,
    }
}

/// Processor time of the threads of this name.
fn thread_seconds(name: &str) -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let named = threads
        .filter(|path| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim().starts_with(name)));
    named.map(|path| seconds(&std::fs::read_to_string(path.join("stat")).unwrap_or_default())).sum()
}

fn process_seconds() -> f64 {
    seconds(&std::fs::read_to_string("/proc/self/stat").unwrap())
}

/// User and system time of a line of `stat`, in ticks of 10 ms.
fn seconds(stat: &str) -> f64 {
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
