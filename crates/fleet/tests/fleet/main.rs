//! `Fleet` as a program uses it: calls in order and out of order, local, and a whole job in one process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alone;
mod job;
mod mpirun;
mod mpirun_collective;
mod order;
mod saving;
mod starting;
mod threads;

use openfleet::fleet::{Fleet, ProcessContext};
use openfleet::role::UserDefined;
use openfleet_core::Role;
use openfleet_core::strategy::{Mode, StrategyOptions};
use openfleet_engine::op::{Activation, EmbeddingOptions};
use openfleet_engine::{DType, Feed, Minimize, Net, ParamAttr, Var};
use openfleet_table::{Optimizer, Sgd};

/// Free ports on loopback, as endpoints.
fn free_endpoints(count: usize) -> Vec<String> {
    // Held together, so that no port is given twice.
    let held: Vec<_> = (0..count).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    held.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect()
}

/// A process of a job, with an empty environment.
fn process(role: Role, rank: i64, workers: i64, servers: &[String]) -> Fleet {
    let role_maker = UserDefined {
        current_id: rank,
        role,
        worker_num: workers,
        server_endpoints: servers.to_vec(),
        ..UserDefined::default()
    };
    Fleet::init_in(Some(&role_maker), ProcessContext::quiet([])).unwrap()
}

/// The options of a mode, with settings that matter in a short run.
fn options(mode: Mode) -> StrategyOptions {
    let mut options = StrategyOptions::for_mode(mode);
    if mode == Mode::Geo {
        options.k_steps = Some(2);
    }
    options
}

/// One table, one dense layer.
struct Model {
    net: Net,
    loss: Var,
}

fn model(fleet: &Fleet, mode: Mode) -> Model {
    let mut net = Net::with_seed(5);
    let slot = net.slot("ids").unwrap();
    let table = EmbeddingOptions { table: ParamAttr::named("table"), ..EmbeddingOptions::default() };
    let rows = net.embedding(slot, 3, &table).unwrap();
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let logit = net.fc(rows, 1, Activation::Linear).unwrap();
    let target = net.cast(label, DType::F32).unwrap();
    let losses = net.sigmoid_cross_entropy_with_logits(logit, target).unwrap();
    let loss = net.mean(losses).unwrap();
    let optimizer =
        fleet.distributed_optimizer(Minimize::new(Optimizer::Sgd(Sgd::default()), 0.5), &options(mode)).unwrap();
    optimizer.minimize(&mut net.main, loss).unwrap();
    Model { net, loss }
}

/// Rows whose label is whether the id is even.
fn feed(step: u64, worker: u64) -> Feed {
    let ids: Vec<Vec<u64>> = (0..8).map(|row| vec![(step * 5 + worker * 3 + row) % 11]).collect();
    let labels: Vec<i64> = ids.iter().map(|ids| i64::from(ids[0] % 2 == 0)).collect();
    let ids: Vec<&[u64]> = ids.iter().map(Vec::as_slice).collect();
    Feed::new().slot("ids", &ids).unwrap().ints("label", 1, &labels).unwrap()
}
