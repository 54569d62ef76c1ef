//! Compares one training step of the CTR-DNN (26 x 10 + 13 -> 400-400-400 -> 1, batch size 512, Adam) with its matrix products.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;

use openfleet_benches::{DENSE, ROWS, SLOTS, best_of, criteo_batches, criteo_schema, nine_products, print_result};
use openfleet_core::WorkId;
use openfleet_engine::op::{Activation, EmbeddingOptions};
use openfleet_engine::{DType, Executor, Minimize, Net, ParamAttr, Plan, Scope};
use openfleet_table::{Adam, Initializer, Optimizer};
use openfleet_testkit::bench::size;

fn main() {
    let batches = criteo_batches(size(200, 2));
    let dim = 10;
    let mut net = Net::with_seed(1);
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let dense = net.data("dense", &[-1, DENSE as i64], DType::F32).unwrap();
    let mut parts = Vec::new();
    for i in 1..=SLOTS {
        let slot = net.slot(&format!("C{i}")).unwrap();
        let table = ParamAttr {
            name: Some("emb".into()),
            initializer: Some(Initializer::Normal { mean: 0.0, std: 0.01 }),
            ..ParamAttr::default()
        };
        parts.push(net.embedding(slot, dim, &EmbeddingOptions { table, ..Default::default() }).unwrap());
    }
    parts.push(dense);
    let mut x = net.concat(&parts, 1).unwrap();
    for _ in 0..3 {
        x = net.fc(x, 400, Activation::Relu).unwrap();
    }
    let logit = net.fc(x, 1, Activation::Linear).unwrap();
    let target = net.cast(label, DType::F32).unwrap();
    let losses = net.sigmoid_cross_entropy_with_logits(logit, target).unwrap();
    let loss = net.mean(losses).unwrap();
    let p = net.sigmoid(logit).unwrap();
    net.auc(p, label).unwrap();
    Minimize::new(Optimizer::Adam(Adam::default()), 1e-3).minimize(&mut net.main, loss).unwrap();
    let scope = Arc::new(Scope::new());
    Executor::new(scope.clone()).run_startup(&net.startup).unwrap();
    let plan = Plan::compile(&net.main, &scope).unwrap();
    let mut arena = plan.arena();
    plan.bind(&mut arena, &criteo_schema()).unwrap();
    let mut step = 0u64;
    let mut run = |count: usize| {
        for _ in 0..count {
            let batch = &batches[step as usize % batches.len()];
            plan.step(&mut arena, batch, WorkId::step(0, step)).unwrap();
            step += 1;
        }
    };
    run(batches.len());

    let steps = size(20, 1);
    let best = best_of(15, &mut [&mut || nine_products(steps), &mut || run(steps)]);
    let rate = |d: std::time::Duration| (steps * ROWS) as f64 / d.as_secs_f64();
    print_result("nine matrix products alone", rate(best[0]), "samples/s");
    print_result("whole step", rate(best[1]), "samples/s");
    print_result("whole step / products", rate(best[1]) / rate(best[0]), "(at least 0.75)");
}
