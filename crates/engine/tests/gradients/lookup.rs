//! Rows of a dense parameter, by id.

use std::sync::Arc;

use openfleet_engine::op::{DenseEmbeddingOptions, Pooling};
use openfleet_engine::{DType, Executor, Feed, Net, ParamAttr, Result, Scope, Tensor};

use crate::constants::assert_tensor;
use crate::harness::{Options, build_error, check};

/// Four rows of two.
const TABLE: &[f32] = &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0];

fn options(pooling: Pooling, padding_idx: Option<i64>) -> DenseEmbeddingOptions {
    DenseEmbeddingOptions { table: ParamAttr::named("p_0"), pooling, padding_idx }
}

/// The result of looking ragged slots, or pairs of ids, up in `TABLE`.
fn run(ragged: bool, options: &DenseEmbeddingOptions, rows: &[&[u64]]) -> Result<Tensor> {
    let mut net = Net::new();
    let ids = if ragged { net.slot("ids")? } else { net.data("ids", &[-1, 2], DType::I64)? };
    let out = net.dense_embedding(ids, [4, 2], options)?;
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup)?;
    executor.scope().set("p_0", Tensor::from_f32(&[4, 2], TABLE.to_vec())?)?;
    let feed = match ragged {
        true => Feed::new().slot("ids", rows)?,
        false => Feed::new().ints("ids", 2, &rows.concat().iter().map(|&id| id as i64).collect::<Vec<_>>())?,
    };
    Ok(executor.run(&net.main, feed, &[out])?.remove(0))
}

#[test]
fn ids_of_a_slot_are_pooled() {
    let rows: &[&[u64]] = &[&[1], &[], &[0, 3, 3], &[2, 2]];
    let pooled = |pooling, padding| run(true, &options(pooling, padding), rows).unwrap();
    assert_tensor(&pooled(Pooling::Sum, None), &[4, 2], &[10.0, 11.0, 0.0, 0.0, 60.0, 63.0, 40.0, 42.0]);
    assert_tensor(&pooled(Pooling::Mean, None), &[4, 2], &[10.0, 11.0, 0.0, 0.0, 20.0, 21.0, 20.0, 21.0]);
    let (three, two) = (3f32.sqrt(), 2f32.sqrt());
    assert_tensor(
        &pooled(Pooling::Sqrtn, None),
        &[4, 2],
        &[10.0, 11.0, 0.0, 0.0, 60.0 / three, 63.0 / three, 40.0 / two, 42.0 / two],
    );
    // The padding counts as absent, in the mean too.
    assert_tensor(&pooled(Pooling::Mean, Some(0)), &[4, 2], &[10.0, 11.0, 0.0, 0.0, 30.0, 31.0, 20.0, 21.0]);
    assert_tensor(&pooled(Pooling::Sum, Some(-1)), &[4, 2], &[10.0, 11.0, 0.0, 0.0, 0.0, 1.0, 40.0, 42.0]);
}

#[test]
fn ids_of_a_slot_that_are_not_pooled_give_a_row_each() {
    let each = run(true, &options(Pooling::Each, Some(0)), &[&[1], &[], &[0, 3, 3]]).unwrap();
    assert_tensor(&each, &[4, 2], &[10.0, 11.0, 0.0, 0.0, 30.0, 31.0, 30.0, 31.0]);
}

#[test]
fn integers_of_a_fixed_shape_give_a_row_each_or_are_pooled() {
    let rows: &[&[u64]] = &[&[1, 0], &[3, 1]];
    let each = run(false, &options(Pooling::Each, Some(1)), rows).unwrap();
    assert_tensor(&each, &[2, 2, 2], &[0.0, 0.0, 0.0, 1.0, 30.0, 31.0, 0.0, 0.0]);
    let mean = run(false, &options(Pooling::Mean, None), rows).unwrap();
    assert_tensor(&mean, &[2, 2], &[5.0, 6.0, 20.0, 21.0]);
}

#[test]
fn lookups_have_the_gradient_of_finite_differences() {
    for pooling in [Pooling::Sum, Pooling::Mean, Pooling::Sqrtn] {
        for padding in [None, Some(2)] {
            check(
                |net, _| {
                    let slot = net.slot("ids")?;
                    net.dense_embedding(slot, [4, 3], &options(pooling, padding))
                },
                &[&[4, 3]],
                Options::default().fed(|rows| {
                    let ids: &[&[u64]] = &[&[1], &[2, 3, 3], &[], &[0, 1, 2, 3], &[0]];
                    Feed::new().slot("ids", &ids[..rows]).unwrap()
                }),
            );
        }
    }
    // Two lookups in one table; one of them has ids that an op computes.
    check(
        |net, _| {
            let ids = net.data("ids", &[-1, 2], DType::I64)?;
            let copy = net.assign(ids)?;
            let one = net.dense_embedding(ids, [4, 3], &options(Pooling::Each, None))?;
            let other = net.dense_embedding(copy, [4, 3], &options(Pooling::Each, Some(0)))?;
            net.multiply(one, other)
        },
        &[&[4, 3]],
        Options::default().fed(|rows| {
            let ids: Vec<i64> = (0..2 * rows as i64).map(|i| i * 3 % 4).collect();
            Feed::new().ints("ids", 2, &ids).unwrap()
        }),
    );
}

#[test]
fn an_id_without_a_row_is_named_with_slot_and_row() {
    let message = |ragged, rows: &[&[u64]]| run(ragged, &options(Pooling::Sum, None), rows).unwrap_err().to_string();
    assert_eq!(
        message(true, &[&[1], &[], &[0, 4]]),
        "`dense_embedding`: an id of slot `ids` must be below the number of rows 4, got 4 at row 2"
    );
    assert_eq!(
        message(false, &[&[1, 1], &[0, u64::MAX]]),
        "`dense_embedding`: an id of slot `ids` must be below the number of rows 4, got -1 at row 1"
    );
}

#[test]
fn ids_of_the_wrong_kind_are_refused() {
    assert_eq!(
        build_error(|net, v| net.dense_embedding(v[0], [4, 2], &DenseEmbeddingOptions::default()), &[&[-1, 3]]),
        "`dense_embedding` expects integer ids, got floats of shape [-1, 3]"
    );
    assert_eq!(
        run(true, &options(Pooling::Sum, Some(-5)), &[&[1]]).unwrap_err().to_string(),
        "`dense_embedding` expects `padding_idx` among 4 rows, got -5"
    );
}
