//! A warm training step allocates nothing of its own.
//!
//! The `gemm` crate allocates packing buffers inside its products. They are counted separately, by running the same products
//! alone, and must account for all allocations.

use std::sync::Arc;

use openfleet_core::{Batch, Column, Field, FieldKind, Schema, WorkId};
use openfleet_engine::matrix::{Plain, Transposed, multiply};
use openfleet_engine::op::{Activation, EmbeddingOptions};
use openfleet_engine::{DType, Executor, Minimize, Net, ParamAttr, Plan, Scope};
use openfleet_table::{Adam, Clip, Optimizer};
use openfleet_testkit::allocation::{CountingAllocator, allocations};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROWS: usize = 64;
const SLOTS: usize = 3;
const DIM: usize = 4;
const HIDDEN: usize = 32;

fn schema() -> Schema {
    let mut fields =
        vec![Field::new("label", FieldKind::FixedIds { length: 1 }), Field::new("dense", FieldKind::Floats { dim: 5 })];
    fields.extend((0..SLOTS).map(|i| Field::new(format!("s{i}"), FieldKind::Ids)));
    Schema::new(fields).expect("distinct names")
}

fn batch(seed: u64) -> Batch {
    let mut batch = Batch::new(&schema());
    batch.rows = ROWS;
    for (field, column) in batch.columns.iter_mut().enumerate() {
        for row in 0..ROWS as u64 {
            match column {
                Column::Ids { .. } if field == 0 => column.push_ids(&[row % 2]),
                Column::Ids { .. } => {
                    let ids = [row % 7 + seed, row % 11, row];
                    column.push_ids(&ids[..(row % 4).min(3) as usize]);
                }
                Column::Floats { .. } => column.push_floats(&[row as f32 * 0.01; 5]),
            }
        }
    }
    batch
}

#[test]
fn a_warm_step_allocates_nothing_but_the_packing_buffers_of_its_products() {
    let mut net = Net::new();
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let dense = net.data("dense", &[-1, 5], DType::F32).unwrap();
    let mut parts = vec![dense];
    for i in 0..SLOTS {
        let slot = net.slot(&format!("s{i}")).unwrap();
        let options = EmbeddingOptions {
            table: ParamAttr::named("table"),
            salt: Some(format!("s{i}")),
            ..EmbeddingOptions::default()
        };
        parts.push(net.embedding(slot, DIM, &options).unwrap());
    }
    let x = net.concat(&parts, 1).unwrap();
    let hidden = net.fc(x, HIDDEN, Activation::Relu).unwrap();
    let logit = net.fc(hidden, 1, Activation::Linear).unwrap();
    let target = net.cast(label, DType::F32).unwrap();
    let losses = net.sigmoid_cross_entropy_with_logits(logit, target).unwrap();
    let loss = net.mean(losses).unwrap();
    let probability = net.sigmoid(logit).unwrap();
    net.auc(probability, label).unwrap();
    Minimize::new(Optimizer::Adam(Adam::default()), 1e-3)
        .clip(Clip::GlobalNorm(1.0))
        .minimize(&mut net.main, loss)
        .unwrap();
    let scope = Arc::new(Scope::new());
    Executor::new(scope.clone()).run_startup(&net.startup).unwrap();
    let plan = Plan::compile(&net.main, &scope).unwrap();
    let mut arena = plan.arena();
    plan.bind(&mut arena, &schema()).unwrap();
    let batches: Vec<Batch> = (0..4).map(batch).collect();
    let mut step = 0;
    let mut run = |batch: &Batch| {
        plan.step(&mut arena, batch, WorkId::step(0, step)).unwrap();
        step += 1;
    };
    (0..3).for_each(|_| batches.iter().for_each(&mut run));

    let inputs = 5 + SLOTS * DIM;
    // x w, xT dy and dy wT of both layers, as `fc` calls them.
    let products = |(i, o): (usize, usize)| {
        let (x, w, y) = (vec![0.1; ROWS * i], vec![0.1; i * o], vec![0.1; ROWS * o]);
        let (mut y_out, mut w_out, mut x_out) = (y.clone(), w.clone(), x.clone());
        allocations(|| {
            multiply(ROWS, o, i, &x, Plain, &w, Plain, 0.0, &mut y_out);
            multiply(i, o, ROWS, &x, Transposed, &y, Plain, 0.0, &mut w_out);
            multiply(ROWS, i, o, &y, Plain, &w, Transposed, 0.0, &mut x_out);
        })
    };
    let in_products = products((inputs, HIDDEN)) + products((HIDDEN, 1));
    for batch in &batches {
        assert_eq!(allocations(|| run(batch)), in_products, "allocations of a step against those of its products");
    }
}
