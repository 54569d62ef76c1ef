//! How a job grows: samples/s, bytes/s, processor time and memory over workers, servers, rows and dimensions, next to what
//! `openfleet plan` predicts for the same job: `cargo bench -p openfleet --bench growth`.
//!
//! Every worker and every server is a process, connected by loopback sockets. A worker pulls and pushes the batches of a
//! CTR-DNN through the real communicator, and waits where it would compute, so that the cluster is measured and not the
//! arithmetic of a few cores. All processes share this machine, which `openfleet plan --one-machine` takes into account.
//!
//! Options after `--`: `--mode MODE`, `--only cluster|rows|dims`, `--wait-ms N`, `--seconds S`, `--rounds N` (the best round
//! counts), `--json FILE`, `--no-plan`. Nothing here is asserted. Linux only: processor time and memory come from `/proc`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench that cannot go on ends, and its lines are the result"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use openfleet::load::{Load, LoadStage, LoadWorker};
use openfleet::model::{ModelShape, Salt};
use openfleet::{Adam, Cluster, Endpoint, Field, FieldKind, Minimize, Optimizer, Schema};
use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_core::topology::Incarnation;
use openfleet_dist::client::Tcp;
use openfleet_dist::communicator::Worker;
use openfleet_dist::handshake::{Secret, fresh_nonce};
use openfleet_dist::session::Identity;
use openfleet_dist::{ClientConfig, Link, Server, ServerConfig, State};
use openfleet_testkit::bench::is_measuring;
use serde::{Deserialize, Serialize};

const BATCH: usize = 512;
const SLOTS: usize = 26;
const DENSE: usize = 13;
/// Distinct ids of a batch: 39 % of 512 x 26.
const KEYS: usize = 5_192;
/// Different batches of a worker.
const BATCHES: usize = 128;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("process-server") => return serve(&arguments[2]),
        Some("process-worker") => return work(&serde_json::from_str(&arguments[2]).unwrap()),
        _ => {}
    }
    let options = Options::parse(&arguments[1..]);
    if !cfg!(target_os = "linux") {
        println!("growth: skipped, this system has no /proc");
        return;
    }
    let mut measured = Vec::new();
    for (title, points) in options.tables() {
        println!("\n{title}\n{HEADING}");
        for point in points {
            let row = measure(&point, &options);
            println!("{}", row.line());
            measured.push(row);
        }
    }
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_string_pretty(&measured).unwrap()).unwrap();
    }
    let ratios: Vec<f64> = measured
        .iter()
        .filter_map(|row| Some(row.planned.as_ref()?.samples_per_second / row.samples_per_second))
        .collect();
    if let (Some(least), Some(most)) =
        (ratios.iter().copied().reduce(f64::min), ratios.iter().copied().reduce(f64::max))
    {
        let near = ratios.iter().filter(|ratio| (0.75..=1.25).contains(*ratio)).count();
        println!(
            "\nplanned / measured samples/s: {least:.2} to {most:.2}; {near} of {} points within 25 %",
            ratios.len()
        );
    }
}

/// What is measured, and how long.
struct Options {
    mode: String,
    only: Option<String>,
    wait_ms: Vec<u64>,
    seconds: f64,
    rounds: usize,
    json: Option<String>,
    plans: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> Self {
        let value = |name: &str| {
            let at = arguments.iter().position(|argument| argument == name)?;
            arguments.get(at + 1).cloned()
        };
        let wait_ms = value("--wait-ms").map_or(vec![40, 10], |text| vec![text.parse().unwrap()]);
        Options {
            mode: value("--mode").unwrap_or_else(|| "async".to_owned()),
            only: value("--only"),
            wait_ms,
            seconds: value("--seconds").map_or(2.5, |text| text.parse().unwrap()),
            rounds: value("--rounds").map_or(2, |text| text.parse().unwrap()),
            json: value("--json"),
            plans: !arguments.iter().any(|argument| argument == "--no-plan"),
        }
    }

    /// The points of each table. Without `--bench` one tiny point, to show that it works.
    fn tables(&self) -> Vec<(&'static str, Vec<Point>)> {
        let usual = Point { workers: 4, servers: 2, rows: 1_000_000, dim: 10, wait_ms: 40, mode: self.mode.clone() };
        if !is_measuring() {
            return vec![("one small job", vec![Point { workers: 2, rows: 2_000, wait_ms: 5, ..usual }])];
        }
        let is_wanted = |name: &str| self.only.as_deref().is_none_or(|only| only == name);
        let mut tables = Vec::new();
        if is_wanted("cluster") {
            let mut points = Vec::new();
            for &wait_ms in &self.wait_ms {
                for servers in [1, 2, 4] {
                    points.extend([1, 2, 4, 8].map(|workers| Point { workers, servers, wait_ms, ..usual.clone() }));
                }
            }
            tables.push(("workers and servers", points));
        }
        let wait_ms = self.wait_ms[0];
        if is_wanted("rows") {
            let points =
                [1_000_000, 10_000_000, 50_000_000].map(|rows| Point { rows, dim: 8, wait_ms, ..usual.clone() });
            tables.push(("rows", points.to_vec()));
        }
        if is_wanted("dims") {
            let points = [8, 16, 32, 64, 128].map(|dim| Point { dim, wait_ms, ..usual.clone() });
            tables.push(("dimensions", points.to_vec()));
        }
        tables
    }
}

/// One job.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Point {
    workers: u32,
    servers: usize,
    rows: u64,
    dim: usize,
    wait_ms: u64,
    mode: String,
}

impl Point {
    fn load(&self) -> Load {
        let mut fields = vec![
            Field::new("label", FieldKind::FixedIds { length: 1 }),
            Field::new("dense", FieldKind::Floats { dim: DENSE }),
        ];
        fields.extend((1..=SLOTS).map(|slot| Field::new(format!("C{slot}"), FieldKind::Ids)));
        let schema = Schema::new(fields).unwrap();
        // A test has no time for 430,000 parameters in an unoptimised build.
        let hidden = if self.rows < 10_000 { vec![16] } else { vec![400; 3] };
        let shape = ModelShape::CtrDnn { dim: self.dim, hidden };
        let mut network = shape.build(&schema, 1, Some(Salt::SlotName), Default::default()).unwrap();
        Minimize::new(Optimizer::Adam(Adam::default()), 1e-3).minimize(&mut network.net.main, network.loss).unwrap();
        let program = &network.net.main;
        let stages = vec![LoadStage { keys: KEYS, tables: vec![0] }];
        Load { sparse: program.sparse_specs(), dense: program.dense_specs(), stages, rows: self.rows }
    }

    fn strategy(&self) -> Strategy {
        Strategy::resolve(&StrategyOptions::for_mode(Mode::parse(&self.mode).unwrap())).unwrap()
    }
}

/// What was measured of a job.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    point: Point,
    samples_per_second: f64,
    /// Sent and received by one worker.
    worker_bytes_per_second: f64,
    server_bytes_per_second: f64,
    worker_cpu_seconds_per_million_samples: f64,
    server_cpu_seconds_per_million_samples: f64,
    /// Resident memory of the largest server.
    server_memory_bytes: f64,
    planned: Option<Planned>,
}

/// What `openfleet plan` predicts.
#[derive(Debug, Serialize, Deserialize)]
struct Planned {
    samples_per_second: f64,
    worker_bytes_per_second: f64,
    server_bytes_per_second: f64,
    worker_cpu_seconds_per_million_samples: f64,
    server_cpu_seconds_per_million_samples: f64,
    server_memory_bytes: f64,
    limit: String,
}

const HEADING: &str = "\
| mode | wait ms | workers | servers | rows | dim | samples/s | planned | ratio | MB/s per worker | planned | MB/s per server | \
CPU s per M samples, workers | servers | planned, both | GB per server | planned | limit |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |";

impl Row {
    fn line(&self) -> String {
        let Point { workers, servers, rows, dim, wait_ms, mode } = &self.point;
        let planned = |value: fn(&Planned) -> String| self.planned.as_ref().map_or("-".to_owned(), value);
        let ratio = self.planned.as_ref().map(|planned| planned.samples_per_second / self.samples_per_second);
        format!(
            "| {mode} | {wait_ms} | {workers} | {servers} | {} M | {dim} | {:.0} | {} | {} | {:.1} | {} | {:.1} | {:.1} | {:.1} | {} | {:.3} | {} | {} |",
            *rows as f64 / 1e6,
            self.samples_per_second,
            planned(|planned| format!("{:.0}", planned.samples_per_second)),
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            self.worker_bytes_per_second / 1e6,
            planned(|planned| format!("{:.1}", planned.worker_bytes_per_second / 1e6)),
            self.server_bytes_per_second / 1e6,
            self.worker_cpu_seconds_per_million_samples,
            self.server_cpu_seconds_per_million_samples,
            planned(|planned| {
                let both =
                    planned.worker_cpu_seconds_per_million_samples + planned.server_cpu_seconds_per_million_samples;
                format!("{both:.1}")
            }),
            self.server_memory_bytes / 1e9,
            planned(|planned| format!("{:.3}", planned.server_memory_bytes / 1e9)),
            planned(|planned| planned.limit.clone()),
        )
    }
}

/// Measures a job some times, and keeps the best round.
fn measure(point: &Point, options: &Options) -> Row {
    let (rounds, seconds) = if is_measuring() { (options.rounds, options.seconds) } else { (1, 0.2) };
    let runs = (0..rounds.max(1)).map(|_| run(point, seconds));
    let best = runs.max_by(|one, other| one.samples_per_second.total_cmp(&other.samples_per_second)).unwrap();
    let planned = (options.plans && is_measuring()).then(|| plan(point));
    Row { planned, ..best }
}

/// A process of the job, killed when it is dropped.
struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, argument: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([role, argument]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Process { child, input, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "process {} ended early", self.child.id());
        line.trim().to_owned()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Processor time so far, in seconds.
    fn cpu_seconds(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let nanoseconds = |path: std::path::PathBuf| {
            let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            text.split_whitespace().next().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0)
        };
        tasks.map(|task| nanoseconds(task.unwrap().path())).sum::<f64>() / 1e9
    }

    fn resident_bytes(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The task of a worker process.
#[derive(Serialize, Deserialize)]
struct Task {
    point: Point,
    rank: u32,
    servers: Vec<(String, u16)>,
    secret: String,
    seconds: f64,
}

/// What a worker process did.
#[derive(Serialize, Deserialize)]
struct Done {
    batches: u64,
    seconds: f64,
    bytes: u64,
}

fn run(point: &Point, seconds: f64) -> Row {
    let secret: String = fresh_nonce().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut servers: Vec<Process> = (0..point.servers).map(|_| Process::start("process-server", &secret)).collect();
    let endpoints: Vec<(String, u16)> = servers
        .iter_mut()
        .map(|server| {
            let line = server.line();
            let (host, port) = line.rsplit_once(':').unwrap();
            (host.to_owned(), port.parse().unwrap())
        })
        .collect();
    let task = |rank| Task { point: point.clone(), rank, servers: endpoints.clone(), secret: secret.clone(), seconds };
    let start = |rank| Process::start("process-worker", &serde_json::to_string(&task(rank)).unwrap());
    let mut workers: Vec<Process> = (0..point.workers).map(start).collect();
    workers.iter_mut().for_each(|worker| assert_eq!(worker.line(), "ready"));
    let cpu = |processes: &[Process]| processes.iter().map(Process::cpu_seconds).sum::<f64>();
    let before = (cpu(&workers), cpu(&servers));
    workers.iter_mut().for_each(|worker| worker.say("go"));
    let done: Vec<Done> = workers.iter_mut().map(|worker| serde_json::from_str(&worker.line()).unwrap()).collect();
    let used = (cpu(&workers) - before.0, cpu(&servers) - before.1);
    let memory = servers.iter().map(Process::resident_bytes).fold(0.0, f64::max);
    workers.iter_mut().for_each(|worker| worker.say("end"));
    workers.iter_mut().for_each(|worker| drop(worker.child.wait()));

    let samples: f64 = done.iter().map(|done| (done.batches * BATCH as u64) as f64).sum();
    let samples_per_second = done.iter().map(|done| (done.batches * BATCH as u64) as f64 / done.seconds).sum();
    let bytes_per_second: f64 = done.iter().map(|done| done.bytes as f64 / done.seconds).sum();
    Row {
        point: point.clone(),
        samples_per_second,
        worker_bytes_per_second: bytes_per_second / f64::from(point.workers),
        server_bytes_per_second: bytes_per_second / point.servers as f64,
        worker_cpu_seconds_per_million_samples: used.0 / samples * 1e6,
        server_cpu_seconds_per_million_samples: used.1 / samples * 1e6,
        server_memory_bytes: memory,
        planned: None,
    }
}

/// Asks `openfleet plan` for the same job.
fn plan(point: &Point) -> Planned {
    let mut command = Command::new(env!("CARGO_BIN_EXE_openfleet"));
    command.args(["plan", "--model", "ctr_dnn", "--one-machine", "--compute-ms", "0", "--json"]);
    for (option, value) in [
        ("--mode", point.mode.clone()),
        ("--worker-num", point.workers.to_string()),
        ("--server-num", point.servers.to_string()),
        ("--rows", point.rows.to_string()),
        ("--dim", point.dim.to_string()),
        ("--batch-size", BATCH.to_string()),
        ("--keys", KEYS.to_string()),
        ("--wait-ms", point.wait_ms.to_string()),
    ] {
        command.args([option, &value]);
    }
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A server process: prints its endpoint, and ends when all workers have departed.
fn serve(secret: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = ServerConfig { secret: Secret::new(secret), ..ServerConfig::default() };
        let server = Server::bind("127.0.0.1", 0, config, Arc::new(State::new())).await.unwrap();
        println!("{}", server.endpoint().unwrap());
        server.run().await.unwrap();
    });
}

/// A worker process: fills its part of the tables, says `ready`, trains when it reads a line, and prints what it did.
fn work(task: &Task) {
    let Task { point, rank, .. } = task;
    let strategy = point.strategy();
    let threads = strategy.thread_pool_size();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap();
    let links = task.servers.iter().map(|(host, port)| {
        let job = ServerConfig::default().job;
        let secret = Secret::new(task.secret.as_str());
        let identity = Identity { job, secret, rank: *rank, incarnation: Incarnation(1) };
        let endpoint = Endpoint::new(host, *port).unwrap();
        Link::remote(runtime.handle(), endpoint, ClientConfig::new(identity), Arc::new(Tcp))
    });
    let worker = Worker { rank: *rank, count: point.workers, threads: 1 };
    let cluster = Cluster::new(links.collect(), worker, strategy);
    let mut worker = LoadWorker::new(&cluster, &point.load(), BATCHES, 1 + u64::from(*rank)).unwrap();
    worker.fill(u64::from(*rank), u64::from(point.workers)).unwrap();
    let wait = Duration::from_millis(point.wait_ms);
    // The same number of batches on every worker, because workers of sync mode wait for each other.
    worker.begin().unwrap();
    (0..8).for_each(|_| worker.batch(wait).unwrap());
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let bytes = || cluster.traffic().0 + cluster.traffic().1;
    let (started, bytes_before, mut batches) = (Instant::now(), bytes(), 0);
    while started.elapsed().as_secs_f64() < task.seconds {
        worker.batch(wait).unwrap();
        batches += 1;
    }
    let done = Done { batches, seconds: started.elapsed().as_secs_f64(), bytes: bytes() - bytes_before };
    worker.finish().unwrap();
    println!("{}", serde_json::to_string(&done).unwrap());
    std::io::stdin().read_line(&mut line).unwrap();
    cluster.close().unwrap();
}
