//! Rules and schedules against independently computed numbers: `golden/*.py` compute them in double precision from the formulas
//! of fluid's documentation, or run PaddlePaddle (`paddle_optimizers.py`); `golden/*.json` is their output.
#![allow(clippy::unwrap_used, reason = "a test")]

use openfleet_core::Key;
use openfleet_table::{
    Accessor, Adam, Admission, DenseSpec, DenseTable, Initializer, NonFinite, Optimizer, Schedule, Scratch, SparseSpec,
    SparseTable,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct RuleCase {
    optimizer: Optimizer,
    rate: f32,
    weights: Vec<f32>,
    steps: Vec<RuleStep>,
}

#[derive(Deserialize)]
struct RuleStep {
    gradient: Vec<f32>,
    weights: Vec<f64>,
    state: Vec<f64>,
}

#[derive(Deserialize)]
struct ScheduleCase {
    schedule: Schedule,
    points: Vec<(u64, f64)>,
}

#[test]
fn every_rule_follows_its_formula_for_five_steps() {
    let cases: Vec<RuleCase> = serde_json::from_str(include_str!("golden/optimizers.json")).unwrap();
    for case in cases {
        let mut weights = case.weights.clone();
        let mut state = vec![0.0; case.optimizer.state_len(weights.len())];
        case.optimizer.init_state(weights.len(), &mut state);
        for (i, step) in case.steps.iter().enumerate() {
            case.optimizer.apply(case.rate, i as u64 + 1, &mut weights, &mut state, &step.gradient);
            let place = format!("{:?} after step {}", case.optimizer, i + 1);
            assert_near(&weights, &step.weights, &place);
            assert_near(&state, &step.state, &place);
        }
    }
}

#[derive(Deserialize)]
struct Paddle {
    weights: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    /// Per step: the rows of a batch, and the gradients of its entries.
    batches: Vec<(Vec<Key>, Vec<Vec<f32>>)>,
    dense: Vec<PaddleDense>,
    tables: Vec<PaddleTable>,
}

#[derive(Deserialize)]
struct PaddleDense {
    optimizer: Optimizer,
    rate: f64,
    /// The weights after every step.
    steps: Vec<Vec<f64>>,
}

#[derive(Deserialize)]
struct PaddleTable {
    lazy_mode: bool,
    is_sparse: bool,
    rate: f64,
    /// The rows after every step.
    steps: Vec<Vec<Vec<f64>>>,
}

fn paddle() -> Paddle {
    serde_json::from_str(include_str!("golden/paddle_optimizers.json")).unwrap()
}

#[test]
fn dense_parameters_are_trained_as_by_paddlepaddle() {
    let paddle = paddle();
    for PaddleDense { optimizer, rate, steps } in paddle.dense {
        let table = DenseTable::new(DenseSpec {
            shape: vec![3, 4],
            optimizer,
            schedule: Schedule::Constant(rate),
            regularizer: None,
            non_finite: NonFinite::Skip,
        })
        .unwrap();
        table.assign(&paddle.weights).unwrap();
        for (number, (gradient, expected)) in paddle.gradients.iter().zip(&steps).enumerate() {
            table.push(gradient).unwrap();
            table.read(|weights| {
                assert_like_paddle(weights, expected, &format!("{optimizer:?} after step {}", number + 1))
            });
        }
    }
}

/// Adam on rows of two weights, as PaddlePaddle's script has them.
fn adam_table(lazy_mode: bool, rate: f64, shards: usize) -> SparseTable {
    SparseTable::new(SparseSpec {
        dim: 2,
        optimizer: Optimizer::Adam(Adam { lazy_mode, ..Adam::default() }),
        schedule: Schedule::Constant(rate),
        regularizer: None,
        initializer: Initializer::Constant(0.5),
        seed: 1,
        shards,
        accessor: Accessor::Plain,
        admission: Admission::All,
        capacity: None,
        non_finite: NonFinite::Skip,
        salted: false,
        storage: Default::default(),
    })
    .unwrap()
}

/// Gradients of equal keys are added before they are pushed, as a worker does.
fn merged((keys, gradients): &(Vec<Key>, Vec<Vec<f32>>)) -> (Vec<Key>, Vec<f32>) {
    let mut sums = std::collections::BTreeMap::new();
    for (key, gradient) in keys.iter().zip(gradients) {
        let sum: &mut [f32; 2] = sums.entry(*key).or_default();
        sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
    }
    (sums.keys().copied().collect(), sums.values().flatten().copied().collect())
}

#[test]
fn rows_without_lazy_mode_move_as_paddlepaddles_dense_embedding_does_in_every_step() {
    let paddle = paddle();
    let dense = paddle.tables.iter().find(|table| !table.is_sparse).unwrap();
    assert!(!dense.lazy_mode);
    for shards in [1, 4] {
        let table = adam_table(false, dense.rate, shards);
        for (number, (batch, expected)) in paddle.batches.iter().zip(&dense.steps).enumerate() {
            let (keys, gradients) = merged(batch);
            table.push(&keys, &gradients, &mut Scratch::new()).unwrap();
            for (key, expected) in (0..).zip(expected) {
                let place = format!("row {key} after step {}", number + 1);
                match table.read(key, |weights, _| weights.to_vec()) {
                    Some(weights) => assert_like_paddle(&weights, expected, &place),
                    // No gradient yet, so no moments that could move it.
                    None => assert_eq!(expected, &[0.5, 0.5], "{place}"),
                }
            }
        }
    }
}

/// The rule is the same in PaddlePaddle's kernel for sparse gradients, but it corrects the bias as if it were one step further:
/// its first step is 0.0744 at a rate of 0.1, that of its dense kernel 0.1. Tables follow the dense kernel, lazy or not, unless the
/// rule has `rows_ahead`.
#[test]
fn the_bias_correction_of_rows_is_that_of_paddlepaddles_dense_kernel_and_not_of_its_sparse_one() {
    let paddle = paddle();
    let moved = |table: &PaddleTable| 0.5 - table.steps[0][1][0];
    for table in &paddle.tables {
        let expected = if table.is_sparse { 0.074_413 } else { 0.1 };
        assert!((moved(table) - expected).abs() < 1e-6, "{}", moved(table));
    }
    for lazy_mode in [false, true] {
        let ours = adam_table(lazy_mode, 0.1, 4);
        ours.push(&[1], &[2.0, -1.0], &mut Scratch::new()).unwrap();
        ours.read(1, |weights, _| assert_near(weights, &[0.4, 0.6], "the first step")).unwrap();
    }
    let ahead = Optimizer::Adam(Adam { rows_ahead: true, ..Adam::default() });
    let (mut weights, mut state) = ([0.5f32; 2], [0.0f32; 4]);
    ahead.apply(0.1, 1, &mut weights, &mut state, &[2.0, -1.0]);
    assert_near(&weights, &[0.5 - 0.074_413, 0.5 + 0.074_413], "the first step, ahead");
    // Counted from 2, the same rule gives the numbers of the sparse kernel, in every step and in both modes.
    for table in paddle.tables.iter().filter(|table| table.is_sparse) {
        let rule = Optimizer::Adam(Adam::default());
        let mut rows = [([0.5f32; 2], [0.0f32; 4]); 5];
        for (number, (batch, expected)) in (2..).zip(paddle.batches.iter().zip(&table.steps)) {
            let (keys, gradients) = merged(batch);
            for (key, (weights, state)) in (0..).zip(&mut rows) {
                let pushed = keys.iter().position(|pushed| *pushed == key);
                if let Some(gradient) = pushed.map(|at| &gradients[at * 2..][..2]) {
                    rule.apply(table.rate as f32, number, weights, state, gradient);
                } else if !table.lazy_mode {
                    rule.apply(table.rate as f32, number, weights, state, &[0.0; 2]);
                }
                assert_like_paddle(weights, &expected[key as usize], &format!("row {key}, count {number}"));
            }
        }
    }
}

#[test]
fn every_schedule_follows_its_formula() {
    let cases: Vec<ScheduleCase> = serde_json::from_str(include_str!("golden/schedules.json")).unwrap();
    for case in cases {
        let schedule = case.schedule.validated().unwrap();
        for (step, expected) in case.points {
            let got = schedule.rate(step);
            assert!((got - expected).abs() <= 1e-12, "{schedule:?} at step {step}: expected {expected}, got {got}");
        }
    }
}

fn assert_near(got: &[f32], expected: &[f64], place: &str) {
    assert_within(2e-6, got, expected, place);
}

/// PaddlePaddle keeps the powers of beta as floats: `1 - 0.999` is wrong by 1.3e-5 of itself there.
fn assert_like_paddle(got: &[f32], expected: &[f64], place: &str) {
    assert_within(5e-5, got, expected, place);
}

fn assert_within(tolerance: f64, got: &[f32], expected: &[f64], place: &str) {
    assert_eq!(got.len(), expected.len(), "{place}");
    for (got, expected) in got.iter().zip(expected) {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= tolerance * expected.abs().max(0.1), "{place}: expected {expected}, got {got}");
    }
}
