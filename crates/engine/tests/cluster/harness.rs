//! A small click model, its data, and a cluster of threads that trains it.

use std::collections::BTreeMap;
use std::sync::Arc;

use openfleet_core::strategy::{Strategy, StrategyOptions};
use openfleet_core::topology::{Endpoint, Incarnation};
use openfleet_dist::client::Tcp;
use openfleet_dist::communicator::Worker;
use openfleet_dist::handshake::Secret;
use openfleet_dist::session::Identity;
use openfleet_dist::{ClientConfig, Cluster, Link, Server, ServerConfig, State};
use openfleet_engine::op::{Activation, EmbeddingOptions};
use openfleet_engine::{DType, Executor, Feed, Minimize, Net, ParamAttr, RowLife, Scope, Var};
use openfleet_table::RowStorage;

/// Rows per batch of one worker.
pub(crate) const ROWS: usize = 6;

/// A net with one shared table and two dense layers.
pub(crate) struct Model {
    pub net: Net,
    pub loss: Var,
}

pub(crate) fn model(minimize: &Minimize) -> Model {
    model_with(minimize, RowStorage::Float32, 5)
}

/// The same with rows that are stored in this way.
pub(crate) fn model_with_rows(minimize: &Minimize, storage: RowStorage) -> Model {
    model_with(minimize, storage, 5)
}

/// The same with a hidden layer of this width.
pub(crate) fn model_of_width(minimize: &Minimize, width: usize) -> Model {
    model_with(minimize, RowStorage::Float32, width)
}

fn model_with(minimize: &Minimize, storage: RowStorage, width: usize) -> Model {
    let mut net = Net::with_seed(5);
    let rows = RowLife { storage, ..RowLife::default() };
    // Ids are below the vocabulary.
    let vocabulary = Some(1000);
    let table = EmbeddingOptions { table: ParamAttr::named("table"), rows, vocabulary, ..EmbeddingOptions::default() };
    let mut parts = Vec::new();
    for slot in ["a", "b"] {
        let slot = net.slot(slot).unwrap();
        parts.push(net.embedding(slot, 3, &table).unwrap());
    }
    parts.push(net.data("x", &[-1, 2], DType::F32).unwrap());
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let joined = net.concat(&parts, 1).unwrap();
    let hidden = net.fc(joined, width, Activation::Relu).unwrap();
    let logit = net.fc(hidden, 1, Activation::Linear).unwrap();
    let target = net.cast(label, DType::F32).unwrap();
    let losses = net.sigmoid_cross_entropy_with_logits(logit, target).unwrap();
    let loss = net.mean(losses).unwrap();
    minimize.minimize(&mut net.main, loss).unwrap();
    Model { net, loss }
}

/// The rows of some batches of a step, concatenated.
pub(crate) fn feed(step: u64, batches: std::ops::Range<u64>) -> Feed {
    joined(batches.map(|batch| (step, batch)))
}

/// The rows of batches, given by step and number, concatenated.
pub(crate) fn joined(batches: impl Iterator<Item = (u64, u64)>) -> Feed {
    let (mut a, mut b, mut x, mut labels) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (step, batch) in batches {
        for row in 0..ROWS as u64 {
            let draw = |salt: u64| openfleet_core::key::mix(step << 32 | batch << 16 | row << 8 | salt);
            a.push((0..draw(0) % 3).map(|i| draw(10 + i) % 17).collect::<Vec<u64>>());
            b.push(vec![100 + draw(1) % 9]);
            x.extend([draw(2) as f32 / u64::MAX as f32, draw(3) as f32 / u64::MAX as f32]);
            labels.push((draw(4) % 2) as i64);
        }
    }
    let a: Vec<&[u64]> = a.iter().map(Vec::as_slice).collect();
    let b: Vec<&[u64]> = b.iter().map(Vec::as_slice).collect();
    let feed = Feed::new().slot("a", &a).unwrap().slot("b", &b).unwrap();
    feed.floats("x", 2, x).unwrap().ints("label", 1, &labels).unwrap()
}

/// Everything that was trained: dense values by name, rows by key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TrainedValues {
    pub dense: BTreeMap<String, Vec<f32>>,
    pub rows: BTreeMap<u64, Vec<f32>>,
}

impl TrainedValues {
    /// The norm of the difference relative to the norm of the values, for the parameter or table where it is largest.
    pub(crate) fn relative_difference(&self, other: &TrainedValues) -> f64 {
        assert_eq!(self.rows.keys().collect::<Vec<_>>(), other.rows.keys().collect::<Vec<_>>());
        let length = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let relative = |ours: Vec<f32>, theirs: Vec<f32>| {
            let difference = length(&mut ours.iter().zip(&theirs).map(|(&a, &b)| f64::from(a) - f64::from(b)));
            difference / length(&mut theirs.iter().map(|&value| f64::from(value)))
        };
        let table =
            |trained_values: &TrainedValues| trained_values.rows.values().flatten().copied().collect::<Vec<f32>>();
        let dense = self.dense.values().zip(other.dense.values()).map(|(a, b)| relative(a.clone(), b.clone()));
        dense.fold(relative(table(self), table(other)), f64::max)
    }

    /// The largest difference of any single value, relative to the size of the two.
    pub(crate) fn distance(&self, other: &TrainedValues) -> f64 {
        assert_eq!(self.rows.keys().collect::<Vec<_>>(), other.rows.keys().collect::<Vec<_>>());
        let pairs = self.dense.values().zip(other.dense.values()).chain(self.rows.values().zip(other.rows.values()));
        let mut worst = 0.0f64;
        for (a, b) in pairs {
            for (&a, &b) in a.iter().zip(b) {
                worst = worst.max(f64::from((a - b).abs()) / f64::from(a.abs().max(b.abs()).max(1e-2)));
            }
        }
        worst
    }
}

const PARAMETERS: [&str; 4] = ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"];

/// One process on the joined batches of `workers` workers.
pub(crate) fn alone(minimize: &Minimize, workers: u64, steps: u64) -> TrainedValues {
    alone_on(minimize, steps, |_| 0..workers)
}

/// One process; `batches(step)` says which workers' batches it joins.
pub(crate) fn alone_on(
    minimize: &Minimize,
    steps: u64,
    batches: impl Fn(u64) -> std::ops::Range<u64>,
) -> TrainedValues {
    let model = model(minimize);
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&model.net.startup).unwrap();
    for step in 0..steps {
        executor.run(&model.net.main, feed(step, batches(step)), &[model.loss]).unwrap();
    }
    values_of(executor.scope())
}

/// What a scope holds.
pub(crate) fn values_of(scope: &Scope) -> TrainedValues {
    let dense =
        PARAMETERS.iter().map(|&name| (name.to_owned(), scope.get(name).unwrap().f32s().unwrap().to_vec())).collect();
    let mut rows = BTreeMap::new();
    scope.sparse("table").unwrap().for_each(|key, weights, _| {
        rows.insert(key, weights.to_vec());
    });
    TrainedValues { dense, rows }
}

/// How workers reach their servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    InProcess,
    Tcp,
}

/// Trains on a cluster of one-thread workers that feed batch by batch; `steps(rank)` is the number of steps of a worker.
pub(crate) fn together(
    options: &StrategyOptions,
    minimize: &Minimize,
    shape: (u32, usize),
    transport: Transport,
    steps: impl Fn(u32) -> u64 + Sync,
) -> TrainedValues {
    let states = on_cluster(options, shape, transport, |cluster| {
        let rank = cluster.worker().rank;
        let model = model(minimize);
        let mut executor = Executor::on_cluster(Arc::new(Scope::new()), cluster);
        executor.run_startup(&model.net.startup).unwrap();
        for step in 0..steps(rank) {
            let batch = u64::from(rank);
            executor.run(&model.net.main, feed(step, batch..batch + 1), &[model.loss]).unwrap();
        }
    });
    trained_values(&states)
}

/// Starts servers and one-thread workers, lets each worker do `work` and leave, and returns the servers' state afterwards.
pub(crate) fn on_cluster(
    options: &StrategyOptions,
    (workers, servers): (u32, usize),
    transport: Transport,
    work: impl Fn(Arc<Cluster>) + Sync,
) -> Vec<Arc<State>> {
    let strategy = Strategy::resolve(options).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let secret = Secret::new("a test's secret");
    let states: Vec<Arc<State>> = (0..servers).map(|_| Arc::new(State::new())).collect();
    let mut running = Vec::new();
    let endpoints: Vec<Endpoint> = states
        .iter()
        .map(|state| {
            let config = ServerConfig { secret: secret.clone(), ..ServerConfig::default() };
            let server = runtime.block_on(Server::bind("127.0.0.1", 0, config, state.clone())).unwrap();
            let endpoint = server.endpoint().unwrap();
            running.push(runtime.spawn(server.run()));
            endpoint
        })
        .collect();
    std::thread::scope(|scope| {
        for rank in 0..workers {
            let (states, endpoints, secret, runtime, work) = (&states, &endpoints, &secret, &runtime, &work);
            scope.spawn(move || {
                let identity = Identity {
                    job: ServerConfig::default().job,
                    secret: secret.clone(),
                    rank,
                    incarnation: Incarnation(1),
                };
                let links = (0..states.len()).map(|server| match transport {
                    Transport::InProcess => Link::in_process(&format!("server {server}"), states[server].clone(), rank),
                    Transport::Tcp => Link::remote(
                        runtime.handle(),
                        endpoints[server].clone(),
                        ClientConfig::new(identity.clone()),
                        Arc::new(Tcp),
                    ),
                });
                let worker = Worker { rank, count: workers, threads: 1 };
                let cluster = Arc::new(Cluster::new(links.collect(), worker, strategy));
                work(cluster.clone());
                cluster.close().unwrap();
            });
        }
    });
    // All workers have left: the servers shut down by themselves.
    for server in running {
        runtime.block_on(server).unwrap().unwrap();
    }
    states
}

/// What the servers hold, merged.
pub(crate) fn trained_values(states: &[Arc<State>]) -> TrainedValues {
    let mut blocks: BTreeMap<(String, usize), Vec<f32>> = BTreeMap::new();
    let mut rows = BTreeMap::new();
    for state in states {
        state.each_block(|name, values| {
            let (parameter, index) = name.rsplit_once(".block").unwrap_or((name, "0"));
            blocks.insert((parameter.to_owned(), index.parse().unwrap()), values.to_vec());
        });
        state
            .each_row(0, |key, weights, _| {
                assert!(rows.insert(key, weights.to_vec()).is_none(), "a row stands on one server");
            })
            .unwrap();
    }
    let mut dense: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for ((parameter, _), values) in blocks {
        dense.entry(parameter).or_default().extend(values);
    }
    TrainedValues { dense, rows }
}
