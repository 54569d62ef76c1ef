//! The gradients of table rows against central finite differences.
//!
//! One step of SGD at rate 1 moves every row by its gradient. This is compared with the change of the loss when one number of one
//! row is changed by hand and the copy for testing is run. Losses are quadratic or smooth in the rows, so that a row that is
//! counted twice or at the wrong position is found.

use openfleet_core::Key;
use openfleet_engine::op::{EmbeddingOptions, Pooling, SkipGramOptions};
use openfleet_engine::{DType, Error, Executor, Feed, Minimize, Net, ParamAttr, Program, Result, Var};
use openfleet_table::{Initializer, Optimizer, Sgd};

use crate::{Numbers, row, started};

/// A table, its dim, and the keys to look at.
type Rows<'a> = (&'a str, usize, &'a [Key]);

/// A key that no batch has.
const UNSEEN_KEY: Key = 424_242;
const EPSILON: f32 = 1e-2;

#[track_caller]
fn check(build: impl Fn(&mut Net) -> Result<Vec<Var>>, feed: impl Fn() -> Feed, tables: &[Rows<'_>]) {
    let mut net = Net::with_seed(7);
    let parts = build(&mut net).unwrap();
    let sums: Vec<Var> = parts.iter().map(|&part| net.reduce_sum(part, &[], false).unwrap()).collect();
    let loss = sums[1..].iter().fold(sums[0], |total, &sum| net.add(total, sum).unwrap());
    Minimize::new(Optimizer::Sgd(Sgd::default()), 1.0).minimize(&mut net.main, loss).unwrap();
    let test = net.main.clone_for_test();
    let mut executor = started(&net);
    // Compiling creates the tables in the scope, with the rule of the program that trains them.
    executor.run(&net.main, feed(), &[]).unwrap();
    let mut numbers = Numbers(5);
    let mut first: Vec<(&str, Key, Vec<f32>)> = Vec::new();
    for &(table, dim, keys) in tables {
        for &key in keys.iter().chain(&[UNSEEN_KEY]) {
            let values: Vec<f32> = (0..dim).map(|_| numbers.uniform() * 2.0 - 1.0).collect();
            set(&executor, table, key, &values);
            first.push((table, key, values));
        }
    }
    executor.run(&net.main, feed(), &[]).unwrap();
    let gradients: Vec<Vec<f32>> = first
        .iter()
        .map(|(table, key, before)| before.iter().zip(row(&executor, table, *key)).map(|(b, a)| b - a).collect())
        .collect();
    first.iter().for_each(|(table, key, values)| set(&executor, table, *key, values));
    for ((table, key, values), gradient) in first.iter().zip(&gradients) {
        for column in 0..values.len() {
            let mut loss_at = |value: f32| {
                let mut moved = values.clone();
                moved[column] = value;
                set(&executor, table, *key, &moved);
                total(&mut executor, &test, feed(), &parts)
            };
            let (high, low) = (values[column] + EPSILON, values[column] - EPSILON);
            let difference = (loss_at(high) - loss_at(low)) / f64::from(high - low);
            loss_at(values[column]);
            let got = f64::from(gradient[column]);
            assert!(
                (got - difference).abs() <= 1e-3 + 5e-3 * difference.abs(),
                "column {column} of row {key} of `{table}`: backward gives {got}, finite differences {difference}"
            );
            assert_eq!(*key == UNSEEN_KEY, got == 0.0, "row {key} of `{table}` moved by {got}");
        }
    }
}

fn set(executor: &Executor, table: &str, key: Key, values: &[f32]) {
    executor.scope().sparse(table).unwrap().assign(key, values, None).unwrap();
}

/// The loss, added up in double precision.
fn total(executor: &mut Executor, test: &Program, feed: Feed, parts: &[Var]) -> f64 {
    let parts = executor.run(test, feed, parts).unwrap();
    parts.iter().flat_map(|part| part.f32s().unwrap()).map(|&v| f64::from(v)).sum()
}

/// The squares of a [B, n] variable, each with its own weight.
fn weigh(net: &mut Net, x: Var) -> Result<Var> {
    let per_row = net.shape(x).elements(1);
    let x = net.reshape(x, &[-1, per_row as i64])?;
    let squares = net.square(x)?;
    let name = net.unique_name("weights");
    let weights = net.data(&name, &[-1, per_row as i64], DType::F32)?;
    net.multiply(squares, weights)
}

/// Weights for `weigh`, in the order of its calls.
fn weights(mut feed: Feed, rows: usize, per_row: &[usize]) -> Feed {
    for (i, &per_row) in per_row.iter().enumerate() {
        let mut numbers = Numbers(i as u64 + 1);
        let values = (0..rows * per_row).map(|_| 0.5 + numbers.uniform()).collect();
        feed = feed.floats(&format!("weights_{i}"), per_row, values).unwrap();
    }
    feed
}

fn pooled(table: &str, pooling: Pooling) -> EmbeddingOptions {
    EmbeddingOptions { table: ParamAttr::named(table), pooling, ..EmbeddingOptions::default() }
}

#[test]
fn every_pooling_spreads_its_gradient_over_repeated_single_and_absent_ids() {
    for pooling in [Pooling::Sum, Pooling::Mean, Pooling::Sqrtn] {
        check(
            |net| {
                let slot = net.slot("a")?;
                let embedded = net.embedding(slot, 3, &pooled("t", pooling))?;
                Ok(vec![weigh(net, embedded)?])
            },
            || {
                let feed = Feed::new().slot("a", &[&[3, 3, 5], &[], &[5], &[0, u64::MAX, 3]]).unwrap();
                weights(feed, 4, &[3])
            },
            &[("t", 3, &[3, 5, 0, u64::MAX])],
        );
    }
}

#[test]
fn the_padding_id_counts_as_absent_and_is_not_trained() {
    let padded = |pooling| EmbeddingOptions { padding_idx: Some(0), ..pooled("t", pooling) };
    for (pooling, expected) in [(Pooling::Sum, 8.0), (Pooling::Mean, 4.0), (Pooling::Sqrtn, 8.0 / 2f32.sqrt())] {
        let mut net = Net::new();
        let slot = net.slot("a").unwrap();
        let y = net.embedding(slot, 1, &padded(pooling)).unwrap();
        let mut executor = started(&net);
        let feed = || Feed::new().slot("a", &[&[0, 1, 2], &[0], &[2]]).unwrap();
        executor.run(&net.main, feed(), &[]).unwrap();
        for (key, value) in [(0, 100.0), (1, 5.0), (2, 3.0)] {
            set(&executor, "t", key, &[value]);
        }
        let values = executor.run(&net.main, feed(), &[y]).unwrap();
        assert_eq!(values[0].f32s().unwrap(), [expected, 0.0, 3.0]);
        check(
            |net| {
                let slot = net.slot("a")?;
                let embedded =
                    net.embedding(slot, 3, &EmbeddingOptions { padding_idx: Some(7), ..pooled("t", pooling) })?;
                Ok(vec![weigh(net, embedded)?])
            },
            || weights(Feed::new().slot("a", &[&[3, 7, 5], &[7], &[5], &[7, 3, 3]]).unwrap(), 4, &[3]),
            &[("t", 3, &[3, 5])],
        );
    }
    check(
        |net| {
            let ids = net.data("a", &[-1, 2], DType::I64)?;
            let embedded =
                net.embedding(ids, 3, &EmbeddingOptions { padding_idx: Some(7), ..pooled("t", Pooling::Each) })?;
            Ok(vec![weigh(net, embedded)?])
        },
        || weights(Feed::new().ints("a", 2, &[3, 7, 7, 5]).unwrap(), 2, &[6]),
        &[("t", 3, &[3, 5])],
    );
    // Counted from the end of a vocabulary, and not beyond it.
    let mut net = Net::new();
    let slot = net.slot("a").unwrap();
    let bounded =
        |padding| EmbeddingOptions { vocabulary: Some(10), padding_idx: Some(padding), ..pooled("t", Pooling::Sum) };
    net.embedding(slot, 1, &bounded(-10)).unwrap();
    let error = net.embedding(slot, 1, &bounded(10)).unwrap_err();
    assert_eq!(error.to_string(), "`embedding` expects `padding_idx` among 10 rows, got 10");
}

#[test]
fn pooling_divides_by_the_number_of_ids_or_its_root() {
    // [1, 1, 2, 2] with row 1 = 1 and row 2 = 3: sum 8, mean 2, over sqrt(4) = 4. No ids give 0, whatever the pooling.
    for (pooling, expected) in [(Pooling::Sum, 8.0), (Pooling::Mean, 2.0), (Pooling::Sqrtn, 4.0)] {
        let mut net = Net::new();
        let slot = net.slot("a").unwrap();
        let y = net.embedding(slot, 1, &pooled("t", pooling)).unwrap();
        let mut executor = started(&net);
        let feed = || Feed::new().slot("a", &[&[1, 1, 2, 2], &[], &[2]]).unwrap();
        executor.run(&net.main, feed(), &[]).unwrap();
        set(&executor, "t", 1, &[1.0]);
        set(&executor, "t", 2, &[3.0]);
        let values = executor.run(&net.main, feed(), &[y]).unwrap();
        assert_eq!(values[0].f32s().unwrap(), [expected, 0.0, 3.0]);
    }
}

#[test]
fn slots_that_share_a_table_add_up_in_its_rows() {
    check(
        |net| {
            let (a, b) = (net.slot("a")?, net.slot("b")?);
            let a = net.embedding(a, 2, &pooled("t", Pooling::Sum))?;
            let b = net.embedding(b, 2, &pooled("t", Pooling::Sum))?;
            let product = net.multiply(a, b)?;
            Ok(vec![weigh(net, a)?, weigh(net, b)?, product])
        },
        || {
            let feed = Feed::new().slot("a", &[&[1, 2], &[2], &[]]).unwrap();
            weights(feed.slot("b", &[&[2], &[1, 1], &[9]]).unwrap(), 3, &[2, 2])
        },
        &[("t", 2, &[1, 2, 9])],
    );
}

#[test]
fn two_tables_on_the_same_slots_keep_their_gradients_apart() {
    check(
        |net| {
            let (a, b) = (net.slot("a")?, net.slot("b")?);
            let mut parts = Vec::new();
            for slot in [a, b] {
                let deep = net.embedding(slot, 3, &pooled("deep", Pooling::Mean))?;
                let wide = net.embedding(slot, 1, &pooled("wide", Pooling::Sum))?;
                parts.extend([weigh(net, deep)?, weigh(net, wide)?]);
            }
            Ok(parts)
        },
        || {
            let feed = Feed::new().slot("a", &[&[1, 2], &[]]).unwrap().slot("b", &[&[2], &[4, 4, 1]]).unwrap();
            weights(feed, 2, &[3, 1, 3, 1])
        },
        &[("deep", 3, &[1, 2, 4]), ("wide", 1, &[1, 2, 4])],
    );
}

#[test]
fn one_slot_in_two_tables_has_the_right_offset_in_each() {
    check(
        |net| {
            let (a, b) = (net.slot("a")?, net.slot("b")?);
            // `t` sees b before a, `u` has a alone, `v` sees a before b: three lists of ids.
            let mut parts = Vec::new();
            for (slot, table) in [(b, "t"), (a, "t"), (a, "u"), (a, "v"), (b, "v")] {
                let embedded = net.embedding(slot, 2, &pooled(table, Pooling::Sum))?;
                parts.push(weigh(net, embedded)?);
            }
            Ok(parts)
        },
        || {
            let feed = Feed::new().slot("a", &[&[1], &[2, 1]]).unwrap().slot("b", &[&[1, 7, 7], &[]]).unwrap();
            weights(feed, 2, &[2; 5])
        },
        &[("t", 2, &[1, 2, 7]), ("u", 2, &[1, 2]), ("v", 2, &[1, 2, 7])],
    );
}

#[test]
fn one_slot_looked_up_twice_in_one_table_counts_twice() {
    check(
        |net| {
            let a = net.slot("a")?;
            let sum = net.embedding(a, 2, &pooled("t", Pooling::Sum))?;
            let mean = net.embedding(a, 2, &pooled("t", Pooling::Mean))?;
            Ok(vec![weigh(net, sum)?, weigh(net, mean)?, net.multiply(sum, mean)?])
        },
        || weights(Feed::new().slot("a", &[&[1, 2, 2], &[3]]).unwrap(), 2, &[2, 2]),
        &[("t", 2, &[1, 2, 3])],
    );
}

#[test]
fn a_slot_of_fixed_length_can_return_each_row_separately() {
    check(
        |net| {
            let ids = net.data("ids", &[-1, 3], DType::I64)?;
            let each = net.embedding(ids, 2, &pooled("t", Pooling::Each))?;
            assert_eq!(net.shape(each).to_string(), "[-1, 3, 2]");
            let pooled = net.embedding(ids, 2, &pooled("t", Pooling::Sum))?;
            Ok(vec![weigh(net, each)?, weigh(net, pooled)?])
        },
        || weights(Feed::new().ints("ids", 3, &[1, 2, 1, -1, 2, 5]).unwrap(), 2, &[6, 2]),
        &[("t", 2, &[1, 2, 5, u64::MAX])],
    );
}

#[test]
fn a_slot_of_any_length_returns_as_many_rows_as_it_has_ids_and_floats_are_refused() {
    let mut net = Net::new();
    let slot = net.slot("a").unwrap();
    let each = net.embedding(slot, 2, &pooled("t", Pooling::Each)).unwrap();
    let feed = Feed::new().slot("a", &[&[1, 2], &[], &[1]]).unwrap();
    let rows = started(&net).run(&net.main, feed, &[each]).unwrap();
    assert_eq!(rows[0].dims(), [3, 2]);
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let error = net.embedding(x, 2, &pooled("u", Pooling::Sum)).unwrap_err();
    assert_eq!(error.to_string(), "`embedding` expects a slot of integer ids, got floats of shape [-1, 2]");
}

fn skip_gram(input: &str, output: &str) -> impl Fn(&mut Net) -> Result<Vec<Var>> {
    let uniform = Initializer::Uniform { low: -1.0, high: 1.0 };
    let attr = |name: &str| ParamAttr { name: Some(name.into()), ..ParamAttr::init(uniform) };
    // More than 16 floats, so that both halves of the dot product count.
    let options = SkipGramOptions { dim: 18, most_contexts: 4, input: attr(input), output: attr(output) };
    move |net| {
        let contexts = net.slot("context")?;
        let targets = net.data("target", &[-1, 3], DType::I64)?;
        let losses = net.skip_gram(contexts, targets, &options)?;
        let weights = net.data("weights_0", &[-1, 1], DType::F32)?;
        Ok(vec![net.multiply(losses, weights)?])
    }
}

fn skip_gram_feed() -> Feed {
    let feed = Feed::new().slot("context", &[&[1, 2, 1, 3], &[], &[2]]).unwrap();
    weights(feed.ints("target", 3, &[5, 6, 6, 5, 7, 8, 6, 5, 1]).unwrap(), 3, &[1])
}

#[test]
fn skip_gram_trains_contexts_and_targets() {
    // Row 1 of the batch has no context: its targets 7 and 8 get no gradient, and 5 only from the other rows.
    check(skip_gram("words", "outputs"), skip_gram_feed, &[("words", 18, &[1, 2, 3]), ("outputs", 18, &[5, 6, 1])]);
}

#[test]
fn skip_gram_works_on_one_table_for_both_sides() {
    check(skip_gram("words", "words"), skip_gram_feed, &[("words", 18, &[1, 2, 3, 5, 6])]);
}

#[test]
fn skip_gram_loss_is_that_of_its_pairs() {
    let mut net = Net::new();
    let contexts = net.slot("context").unwrap();
    let targets = net.data("target", &[-1, 2], DType::I64).unwrap();
    let options = SkipGramOptions {
        dim: 1,
        most_contexts: 2,
        input: ParamAttr::named("words"),
        output: ParamAttr::named("outputs"),
    };
    let losses = net.skip_gram(contexts, targets, &options).unwrap();
    let mut executor = started(&net);
    let feed = || Feed::new().slot("context", &[&[1, 2], &[]]).unwrap().ints("target", 2, &[3, 4, 3, 4]).unwrap();
    executor.run(&net.main, feed(), &[]).unwrap();
    for (table, key, value) in [("words", 1, 1.0), ("words", 2, -2.0), ("outputs", 3, 0.5), ("outputs", 4, 3.0)] {
        set(&executor, table, key, &[value]);
    }
    // Pairs (context, target): scores 0.5 and -1 with the centre, 3 and -6 with the negative.
    let softplus = |s: f64| s.exp().ln_1p();
    let expected = softplus(-0.5) + softplus(1.0) + softplus(3.0) + softplus(-6.0);
    let values = executor.run(&net.main, feed(), &[losses]).unwrap();
    let got = values[0].f32s().unwrap();
    assert!((f64::from(got[0]) - expected).abs() < 1e-5, "{got:?} against {expected}");
    assert_eq!(got[1], 0.0, "a row without contexts has no loss");

    let long = Feed::new().slot("context", &[&[1], &[1, 2, 3]]).unwrap().ints("target", 2, &[3, 4, 3, 4]).unwrap();
    let error = executor.run(&net.main, long, &[]).unwrap_err();
    assert_eq!(error.to_string(), "`skip_gram`: the number of contexts must be at most 2, got 3 at row 1");
}

#[test]
fn an_id_beyond_the_vocabulary_is_named_with_its_slot_and_row() {
    let mut net = Net::new();
    let slot = net.slot("a").unwrap();
    let options = EmbeddingOptions { vocabulary: Some(10), ..pooled("t", Pooling::Sum) };
    let y = net.embedding(slot, 2, &options).unwrap();
    let mut executor = started(&net);
    executor.run(&net.main, Feed::new().slot("a", &[&[0, 9]]).unwrap(), &[y]).unwrap();
    let error = executor.run(&net.main, Feed::new().slot("a", &[&[1, 2], &[], &[3, 10]]).unwrap(), &[y]).unwrap_err();
    assert!(matches!(error, Error::Value { row: 2, .. }));
    assert_eq!(
        error.to_string(),
        "`embedding`: an id of slot `a` must be below the vocabulary's size 10, got 10 at row 2"
    );
}
