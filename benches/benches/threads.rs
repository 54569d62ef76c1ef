//! Compares two training threads on two cores with one, and a step from file to update with the matrix products alone.
//!
//! Both use the product's own code path: generated MultiSlot files, a streaming or an in-memory dataset, `train_from_dataset`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use openfleet_benches::{ROWS, criteo_schema, nine_products, print_result};
use openfleet_core::{Batch, WorkId};
use openfleet_engine::dataset::{Dataset, DatasetConfig, Format, InMemoryDataset, MultiSlot, QueueDataset};
use openfleet_engine::models::{CtrDnn, CtrInputs, ctr_dnn};
use openfleet_engine::synthetic::criteo::{self, CriteoFormat, CriteoSpec};
use openfleet_engine::{Executor, Minimize, Net, Plan, RunOptions, Scope};
use openfleet_table::{Adam, Optimizer};
use openfleet_testkit::bench::size;

const ROUNDS: usize = 5;
const FILE_ROWS: usize = 100_000;

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let spec = CriteoSpec {
        rows: size(FILE_ROWS, 2000) as u64,
        test_rows: 1000,
        parts: 2,
        formats: vec![CriteoFormat::MultiSlot],
        ..CriteoSpec::default()
    };
    criteo::write(&spec, directory.path()).unwrap();
    let files: Vec<_> = (0..2).map(|part| directory.path().join(format!("train/part-{part}.txt"))).collect();

    let mut net = Net::with_seed(1);
    let inputs = CtrInputs::declare(&mut net, &criteo_schema()).unwrap();
    let outputs = ctr_dnn(&mut net, &inputs, &CtrDnn::default()).unwrap();
    Minimize::new(Optimizer::Adam(Adam::default()), 1e-3).minimize(&mut net.main, outputs.loss).unwrap();
    let scope = Arc::new(Scope::new());
    let mut executor = Executor::new(scope.clone());
    executor.run_startup(&net.startup).unwrap();

    let config =
        || DatasetConfig::new(criteo_schema(), Format::MultiSlot(MultiSlot::default())).files(&files).batch_size(ROWS);
    let mut in_memory = InMemoryDataset::new(config()).unwrap();
    in_memory.load_into_memory().unwrap();
    let queue = QueueDataset::new(config()).unwrap();
    let plan = Plan::compile(&net.main, &scope).unwrap();
    let mut arena = plan.arena();
    plan.bind(&mut arena, queue.schema()).unwrap();

    // The best of several rounds; the candidates take turns.
    let mut best = [0.0f64; 5];
    for round in 0..=size(ROUNDS, 1) {
        let mut rate = |which: usize, rows: u64, seconds: f64| {
            if round > 0 {
                best[which] = best[which].max(rows as f64 / seconds);
            }
        };
        let steps = size(100, 1);
        let started = Instant::now();
        nine_products(steps);
        rate(0, (steps * ROWS) as u64, started.elapsed().as_secs_f64());

        // One core does all of it: parse, batch, step.
        let started = Instant::now();
        let rows = parse_and_train(&queue, &plan, &mut arena);
        rate(1, rows, started.elapsed().as_secs_f64());

        for (which, threads) in [(2, 1), (3, 2)] {
            let options = RunOptions { threads, ..RunOptions::default() };
            let report = executor.train_from_dataset(&net.main, &in_memory, &options).unwrap();
            rate(which, report.samples, report.elapsed.as_secs_f64());
        }
        let options = RunOptions { threads: 2, ..RunOptions::default() };
        let report = executor.train_from_dataset(&net.main, &queue, &options).unwrap();
        rate(4, report.samples, report.elapsed.as_secs_f64());
    }
    print_result("nine matrix products alone, one core", best[0], "samples/s");
    print_result("from file to update, one training thread", best[1], "samples/s");
    print_result("from file to update / products", best[1] / best[0], "(at least 0.70)");
    print_result("in memory, one thread", best[2], "samples/s");
    print_result("in memory, two threads", best[3], "samples/s");
    print_result("two threads / one thread", best[3] / best[2], "(at least 1.8)");
    print_result("streaming from files, two threads", best[4], "samples/s");
}

fn parse_and_train(queue: &QueueDataset, plan: &Plan, arena: &mut openfleet_engine::memory::Arena) -> u64 {
    let reader = queue.open().unwrap();
    let mut batch = Batch::default();
    let (mut rows, mut step) = (0, 0);
    while reader.next(&mut batch).unwrap() {
        plan.step(arena, &batch, WorkId::step(0, step)).unwrap();
        rows += batch.rows as u64;
        step += 1;
    }
    rows
}
