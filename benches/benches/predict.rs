//! Predicts with a saved Wide & Deep (26 x 9 and 13 floats -> 256-128-64, one weight per id) on one core, by batch size.
//!
//! Each batch is fed as a server would feed it: the ids and floats are copied into a new feed.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;

use openfleet_benches::{ROWS, best_of, criteo_batches, criteo_schema, print_result};
use openfleet_core::{Batch, Column, Schema, WorkId};
use openfleet_engine::models::{CtrInputs, WideDeep, wide_deep};
use openfleet_engine::{Executor, Feed, Minimize, Net, Plan, Predictor, Scope};
use openfleet_table::{Adam, Optimizer};
use openfleet_testkit::bench::size;

fn main() {
    let (batches, schema) = (criteo_batches(size(50, 2)), criteo_schema());
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("model").to_str().unwrap().to_owned();
    save(&batches, &schema, &address);
    let predictor = Predictor::open(&address).unwrap();
    for rows in [1, 16, 128, ROWS] {
        let feeds: Vec<Feed> = batches.iter().map(|batch| feed(batch, &schema, rows)).collect();
        let calls = size((20_000 / rows).clamp(20, 2000), 2);
        let mut run = || {
            for feed in feeds.iter().cycle().take(calls) {
                predictor.predict(feed.clone()).unwrap();
            }
        };
        run();
        let seconds = best_of(10, &mut [&mut run])[0].as_secs_f64();
        print_result(&format!("predict, batch {rows}"), (calls * rows) as f64 / seconds, "samples/s");
        print_result(&format!("predict, batch {rows}, one call"), seconds / calls as f64 * 1e6, "us");
    }
}

/// Trains on the batches once, so that all of their ids have rows, and saves an inference model.
fn save(batches: &[Batch], schema: &Schema, address: &str) {
    let mut net = Net::with_seed(1);
    let inputs = CtrInputs::declare(&mut net, schema).unwrap();
    let shape = WideDeep { dim: 9, hidden: vec![256, 128, 64], wide_ids: true };
    let outputs = wide_deep(&mut net, &inputs, &shape).unwrap();
    Minimize::new(Optimizer::Adam(Adam::default()), 1e-3).minimize(&mut net.main, outputs.loss).unwrap();
    let scope = Arc::new(Scope::new());
    let mut executor = Executor::new(scope.clone());
    executor.run_startup(&net.startup).unwrap();
    let plan = Plan::compile(&net.main, &scope).unwrap();
    let mut arena = plan.arena();
    plan.bind(&mut arena, schema).unwrap();
    for (step, batch) in batches.iter().enumerate() {
        plan.step(&mut arena, batch, WorkId::step(0, step as u64)).unwrap();
    }
    let names = schema.fields().iter().map(|field| field.name.clone());
    let feeds: Vec<String> = names.filter(|name| name != "label").collect();
    executor.save_inference_model(&net.main, &feeds, &[outputs.probability], address).unwrap();
}

/// The first rows of a batch, without their labels.
fn feed(batch: &Batch, schema: &Schema, rows: usize) -> Feed {
    let fields = schema.fields().iter().zip(&batch.columns).filter(|(field, _)| field.name != "label");
    fields.fold(Feed::new(), |feed, (field, column)| match column {
        Column::Floats { dim, values } => feed.floats(&field.name, *dim, values[..rows * dim].to_vec()).unwrap(),
        Column::Ids { offsets, keys } => {
            let lengths: Vec<usize> = offsets[..=rows].windows(2).map(|ends| (ends[1] - ends[0]) as usize).collect();
            feed.ids(&field.name, &lengths, keys[..offsets[rows] as usize].to_vec()).unwrap()
        }
    })
}
