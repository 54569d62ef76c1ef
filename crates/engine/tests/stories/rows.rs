//! Which ids get a row, and what happens to gradients that are not finite, as configured in the layer and the optimizer.

use openfleet_engine::op::EmbeddingOptions;
use openfleet_engine::{DType, Executor, Feed, Minimize, Net, ParamAttr, RowLife, Var};
use openfleet_table::{Accessor, Admission, CtrOptions, NonFinite, Optimizer, Sgd};

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
fn a_non_finite_gradient_is_refused_or_stops_the_run_as_configured() {
    let (net, loss, mut executor) = model(RowLife::default(), NonFinite::Skip);
    executor.run(&net.main, feed(&[7], f32::NAN), &[loss]).unwrap();
    let table = executor.scope().sparse("table").unwrap();
    assert!(table.read(7, |weights, _| weights.iter().all(|weight| weight.is_finite())).unwrap());

    let (net, loss, mut executor) = model(RowLife::default(), NonFinite::Stop);
    let error = executor.run(&net.main, feed(&[7], f32::NAN), &[loss]).unwrap_err();
    assert_eq!(error.to_string(), "the loss `mean_0.tmp_0` became NaN at step 0");
    // A loss may be finite while its gradient is not.
    let error = executor.run(&net.main, feed(&[7], 1e30), &[loss]).unwrap_err();
    let expected = "the gradient of row 7 of `table` is not finite at step 0: nothing of this step was applied";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn rows_count_the_shows_and_clicks_of_their_samples() {
    let mut net = Net::with_seed(3);
    let slot = net.slot("id").unwrap();
    net.data("show", &[-1, 1], DType::F32).unwrap();
    net.data("click", &[-1, 1], DType::I64).unwrap();
    let rows = RowLife {
        accessor: Accessor::Ctr(CtrOptions::default()),
        counts: Some(("show".into(), "click".into())),
        ..RowLife::default()
    };
    let options = EmbeddingOptions { table: ParamAttr::named("table"), rows, ..EmbeddingOptions::default() };
    let row = net.embedding(slot, 2, &options).unwrap();
    let loss = net.mean(row).unwrap();
    Minimize::new(Optimizer::Sgd(Sgd::default()), 0.1).minimize(&mut net.main, loss).unwrap();
    let mut executor = started(&net);
    let feed = Feed::new().slot("id", &[&[1, 2], &[], &[1]]).unwrap();
    let feed = feed.floats("show", 1, vec![1.0, 7.0, 2.0]).unwrap().ints("click", 1, &[1, 1, 0]).unwrap();
    executor.run(&net.main, feed, &[loss]).unwrap();
    let table = executor.scope().sparse("table").unwrap();
    let counted = |key| table.read_row(key, |row| row.ctr.map(|ctr| (ctr.show, ctr.click))).flatten();
    assert_eq!((counted(1), counted(2)), (Some((3.0, 1.0)), Some((1.0, 1.0))));

    // A program that does not train reads no counts, and neither does a pruned one.
    let ids = || Feed::new().slot("id", &[&[1]]).unwrap();
    executor.run(&net.main.clone_for_test(), ids(), &[row]).unwrap();
    let (pruned, targets) = net.main.prune(&[row]);
    executor.run(&pruned, ids(), &targets).unwrap();
}
