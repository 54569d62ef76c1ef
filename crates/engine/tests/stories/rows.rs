//! Which ids get a row, and what becomes of gradients that are not finite: asked for where the layer and the rule are made.

use openfleet_engine::op::EmbeddingOptions;
use openfleet_engine::{DType, Executor, Feed, Minimize, Net, ParamAttr, RowLife, Var};
use openfleet_table::{Admission, NonFinite, Optimizer, Sgd};

use crate::started;

/// `x * sum(embedding(id))`, trained by SGD.
fn model(rows: RowLife, non_finite: NonFinite) -> (Net, Var, Executor) {
    let mut net = Net::with_seed(3);
    let slot = net.slot("id").unwrap();
    let options = EmbeddingOptions { table: ParamAttr::named("table"), rows, ..EmbeddingOptions::default() };
    let row = net.embedding(slot, 2, &options).unwrap();
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let product = net.multiply(row, x).unwrap();
    let loss = net.mean(product).unwrap();
    let rule = Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1).non_finite(non_finite);
    rule.minimize(&mut net.main, loss).unwrap();
    let executor = started(&net);
    (net, loss, executor)
}

fn feed(ids: &[u64], x: f32) -> Feed {
    let ids: Vec<&[u64]> = ids.chunks(1).collect();
    let values = vec![x; 2 * ids.len()];
    Feed::new().slot("id", &ids).unwrap().floats("x", 2, values).unwrap()
}

#[test]
fn an_id_gets_a_row_when_it_has_been_seen_often_enough() {
    let life = RowLife { admission: Admission::Count(2), ..RowLife::default() };
    let (net, loss, mut executor) = model(life, NonFinite::Skip);
    let mut rows_after = |ids: &[u64]| {
        executor.run(&net.main, feed(ids, 1.0), &[loss]).unwrap();
        executor.scope().sparse("table").unwrap().len()
    };
    assert_eq!(rows_after(&[7, 8]), 0);
    assert_eq!(rows_after(&[7, 9]), 1);
    assert_eq!(rows_after(&[8, 9]), 3);
}

#[test]
fn a_gradient_that_is_not_finite_is_refused_or_ends_the_run_as_was_asked() {
    let (net, loss, mut executor) = model(RowLife::default(), NonFinite::Skip);
    executor.run(&net.main, feed(&[7], f32::NAN), &[loss]).unwrap();
    let table = executor.scope().sparse("table").unwrap();
    assert!(table.read(7, |weights, _| weights.iter().all(|weight| weight.is_finite())).unwrap());

    let (net, loss, mut executor) = model(RowLife::default(), NonFinite::Stop);
    let error = executor.run(&net.main, feed(&[7], f32::NAN), &[loss]).unwrap_err();
    assert!(openfleet_core::error::report(&error).contains("not finite"), "{}", openfleet_core::error::report(&error));
}
