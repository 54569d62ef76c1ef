//! The `auc` op: its areas against exact ones, and its counters in the scope.

use std::fmt::Write as _;

use openfleet_core::error::report;
use openfleet_core::metrics::{Auc, exact_auc, operator_auc};
use openfleet_core::{Field, FieldKind, Schema};
use openfleet_engine::op::AucVars;
use openfleet_engine::{DType, Error, Executor, Feed, Net, RunOptions, Tensor};
use tempfile::TempDir;

use crate::{Numbers, file, loaded, multislot, started};

const COUNTERS: [&str; 4] = ["_generated_var_0", "_generated_var_1", "_generated_var_2", "_generated_var_3"];

fn network(slide_steps: usize) -> (Net, AucVars) {
    let mut net = Net::new();
    let p = net.data("p", &[-1, 1], DType::F32).unwrap();
    let label = net.data("label", &[-1, 1], DType::I64).unwrap();
    let auc = net.auc_with(p, label, 4095, slide_steps).unwrap();
    (net, auc)
}

fn feed(labels: &[i64], scores: &[f32]) -> Feed {
    Feed::new().floats("p", 1, scores.to_vec()).unwrap().ints("label", 1, labels).unwrap()
}

/// Scores between 0 and 1 that say something about their labels.
fn judged(seed: u64, count: usize) -> (Vec<i64>, Vec<f32>) {
    let mut numbers = Numbers(seed);
    (0..count)
        .map(|_| {
            let score = numbers.uniform();
            (i64::from(numbers.uniform() < 0.25 + 0.5 * score), score)
        })
        .unzip()
}

fn counts(executor: &Executor, name: &str) -> Vec<i64> {
    executor.scope().get(name).unwrap().i64s().unwrap().to_vec()
}

#[test]
fn the_area_over_many_batches_and_threads_is_the_exact_one_up_to_a_bucket() {
    let folder = TempDir::new().unwrap();
    let (labels, scores) = judged(1, 5000);
    let exact = exact_auc(&labels, &scores).unwrap();
    let mut text = String::new();
    for (label, score) in labels.iter().zip(&scores) {
        writeln!(text, "1 {score} 1 {label}").unwrap();
    }
    let fields =
        vec![Field::new("p", FieldKind::Floats { dim: 1 }), Field::new("label", FieldKind::FixedIds { length: 1 })];
    let schema = Schema::new(fields).unwrap();
    let dataset = loaded(multislot(&schema, vec![file(&folder, "part", &text)]).batch_size(64));
    let (net, _) = network(1);
    for threads in [1, 2, 4] {
        let mut executor = started(&net);
        let options = RunOptions { threads, ..RunOptions::default() };
        executor.infer_from_dataset(&net.main, &dataset, &options).unwrap();
        let [positive, negative] = [COUNTERS[2], COUNTERS[3]].map(|name| counts(&executor, name));
        assert_eq!(positive.iter().sum::<i64>(), labels.iter().sum::<i64>());
        assert_eq!(positive.iter().chain(&negative).sum::<i64>(), 5000, "each row is counted once");
        let area = operator_auc(&positive, &negative);
        assert!((area - exact).abs() < 1.0 / 4095.0, "{area} against {exact}");
    }
}

#[test]
fn counters_restart_after_being_reset_through_the_scope() {
    let (net, auc) = network(1);
    let names = auc.counters.map(|counter| net.main.variable(counter).name.clone());
    assert_eq!(names, COUNTERS);
    let mut executor = started(&net);
    let area = |executor: &mut Executor, labels: &[i64], scores: &[f32]| {
        let values = executor.run(&net.main, feed(labels, scores), &[auc.auc, auc.batch_auc]).unwrap();
        (values[0].scalar().unwrap(), values[1].scalar().unwrap())
    };
    // One pair in the wrong order, then one in the right order: of the four pairs of both batches, (0.4, 0.6) is wrong,
    // (0.9, 0.1) right, (0.4, 0.1) right and (0.9, 0.6) right.
    assert_eq!(area(&mut executor, &[1, 0], &[0.4, 0.6]), (0.0, 0.0));
    assert_eq!(area(&mut executor, &[1, 0], &[0.9, 0.1]), (0.75, 1.0));
    for name in COUNTERS {
        let dims = executor.scope().get(name).unwrap().dims().to_vec();
        assert_eq!(dims, [1, 4096]);
        executor.scope().set(name, Tensor::zeros(&dims, DType::I64)).unwrap();
    }
    assert_eq!(area(&mut executor, &[1, 0], &[0.9, 0.1]), (1.0, 1.0));
}

#[test]
fn a_window_covers_its_last_batches_and_no_others() {
    let (net, auc) = network(3);
    let mut executor = started(&net);
    let mut metric = Auc::with(4095, 3);
    let batches: Vec<_> = (0..7).map(|i| judged(10 + i, 40)).collect();
    for (i, (labels, scores)) in batches.iter().enumerate() {
        let values = executor.run(&net.main, feed(labels, scores), &[auc.auc, auc.batch_auc]).unwrap();
        metric.update(labels, scores).unwrap();
        assert_eq!(values[0].scalar().unwrap(), f64::from(metric.value() as f32));
        assert_eq!(values[1].scalar().unwrap(), f64::from(metric.batch_value() as f32), "batch {i}");
        let window = &batches[i.saturating_sub(2)..=i];
        let labels: Vec<i64> = window.iter().flat_map(|batch| batch.0.clone()).collect();
        let scores: Vec<f32> = window.iter().flat_map(|batch| batch.1.clone()).collect();
        let exact = exact_auc(&labels, &scores).unwrap();
        assert!((values[1].scalar().unwrap() - exact).abs() < 1.0 / 400.0, "batch {i} against {exact}");
    }
}

#[test]
fn a_window_of_zero_batches_covers_all_batches() {
    let (net, auc) = network(0);
    let mut executor = started(&net);
    for i in 0..3 {
        let (labels, scores) = judged(i, 30);
        let values = executor.run(&net.main, feed(&labels, &scores), &[auc.auc, auc.batch_auc]).unwrap();
        assert_eq!(values[0], values[1]);
    }
}

#[test]
fn a_batch_with_one_class_has_no_area_but_is_counted() {
    let (net, auc) = network(1);
    let mut executor = started(&net);
    let values = executor.run(&net.main, feed(&[1, 1], &[0.5, 1.0]), &[auc.auc, auc.batch_auc]).unwrap();
    assert_eq!((values[0].scalar(), values[1].scalar()), (Some(0.0), Some(0.0)));
    let values = executor.run(&net.main, feed(&[0], &[0.0]), &[auc.auc, auc.batch_auc]).unwrap();
    assert_eq!((values[0].scalar(), values[1].scalar()), (Some(1.0), Some(0.0)));
}

#[test]
fn a_score_outside_0_to_1_is_reported_with_its_row_and_a_hint() {
    for (bad, shown) in [(1.5, "1.5"), (-0.25, "-0.25"), (f32::NAN, "NaN")] {
        let (net, auc) = network(1);
        let mut executor = started(&net);
        let error = executor.run(&net.main, feed(&[1, 0], &[0.5, bad]), &[auc.auc]).unwrap_err();
        assert!(matches!(error, Error::Core(_)));
        assert_eq!(
            report(&error),
            format!(
                "auc expects a probability from 0 to 1, got {shown} at row 1\n\nhint: feed probabilities: put a sigmoid \
                 or a softmax before `auc`"
            )
        );
        assert_eq!(counts(&executor, COUNTERS[2]).iter().sum::<i64>(), 0, "a refused batch counts nowhere");
    }
}
