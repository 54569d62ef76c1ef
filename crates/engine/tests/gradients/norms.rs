//! Normalisations and dropout. Numbers without a calculation next to them come from tests/golden/ops.py.

use std::sync::Arc;

use openfleet_engine::op::{BatchNormOptions, Dropout, DropoutMode, LayerNormOptions};
use openfleet_engine::{DType, Executor, Feed, Net, ParamAttr, Result, Scope, Tensor, Var};

use crate::constants::{assert_near, assert_tensor};
use crate::harness::{Options, build_error, check, compute_of, drawn};

const X: &[f32] = &[0.5, -1.0, 2.0, 0.0, 3.0, -2.0];

/// Finite differences of the training program itself. The harness uses its copy for evaluation, where dropout and batch
/// statistics differ.
#[track_caller]
fn check_in_training(build: impl Fn(&mut Net, &[Var]) -> Result<Var>, dims: &[&[usize]]) {
    let mut net = Net::with_seed(7);
    let attr = |i: usize| ParamAttr::named(format!("p_{i}"));
    let vars: Vec<Var> = (0..dims.len()).map(|i| net.create_parameter(dims[i], &attr(i)).unwrap()).collect();
    let out = build(&mut net, &vars).unwrap();
    let out_dims = net.shape(out).sizes(1);
    let fixed = ParamAttr { frozen: true, ..ParamAttr::named("weights") };
    let weights = net.create_parameter(&out_dims, &fixed).unwrap();
    let weighted = net.multiply(out, weights).unwrap();
    let loss = net.reduce_sum(weighted, &[], false).unwrap();
    net.main.append_backward(loss, None, &[]).unwrap();
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup).unwrap();
    let weights = Tensor::from_f32(&out_dims, drawn(50, out_dims.iter().product(), (0.5, 2.0))).unwrap();
    executor.scope().set("weights", weights).unwrap();
    let mut run = |values: &[Vec<f32>], fetch: &[Var]| {
        for (i, value) in values.iter().enumerate() {
            executor.scope().set(&format!("p_{i}"), Tensor::from_f32(dims[i], value.clone()).unwrap()).unwrap();
        }
        executor.run(&net.main, Feed::new().floats("rows", 1, vec![0.0]).unwrap(), fetch).unwrap()
    };
    let mut values: Vec<Vec<f32>> =
        (0..dims.len()).map(|i| drawn(i as u64 + 1, dims[i].iter().product(), (-1.0, 1.0))).collect();
    let gradients: Vec<Var> = vars.iter().map(|&var| net.main.gradient_of(var).unwrap()).collect();
    let gradients = run(&values, &gradients);
    for i in 0..dims.len() {
        for j in 0..values[i].len() {
            let original = values[i][j];
            let mut at = |value| {
                values[i][j] = value;
                run(&values, &[loss])[0].scalar().unwrap()
            };
            let difference = (at(original + 1e-2) - at(original - 1e-2)) / 2e-2;
            at(original);
            let got = f64::from(gradients[i].f32s().unwrap()[j]);
            let allowed = 1e-2 * got.abs().max(difference.abs()) + 2e-3;
            assert!(
                (got - difference).abs() <= allowed,
                "element {j} of parameter {i}: backward gives {got}, finite differences {difference}"
            );
        }
    }
}

#[test]
fn layer_norm_agrees_with_the_formula() {
    let options = LayerNormOptions {
        scale: Some(ParamAttr::named("p_1")),
        shift: Some(ParamAttr::named("p_2")),
        ..LayerNormOptions::default()
    };
    let (dims, y) = compute_of(
        |net, p| net.layer_norm(p[0], &options),
        &[(&[2, 3], X), (&[3], &[2.0, 0.5, -1.0]), (&[3], &[0.1, 0.2, 0.3])],
    );
    assert_eq!(dims, [2, 3]);
    assert_near(&y, &[0.1, -0.4123704, -0.9247408, -0.2244425, 0.8488849, 1.435549]);
}

#[test]
fn layer_norm_has_the_gradient_of_finite_differences() {
    let named = |i: usize| Some(ParamAttr::named(format!("p_{i}")));
    let options = LayerNormOptions { scale: named(1), shift: named(2), ..LayerNormOptions::default() };
    check(|net, p| net.layer_norm(p[0], &options), &[&[3, 5], &[5], &[5]], Options::default());
    let options = LayerNormOptions { begin_norm_axis: 2, scale: named(1), shift: None, ..LayerNormOptions::default() };
    check(|net, p| net.layer_norm(p[0], &options), &[&[2, 2, 4], &[4]], Options::default());
    let options = LayerNormOptions { scale: None, shift: named(1), ..LayerNormOptions::default() };
    check(|net, p| net.layer_norm(p[0], &options), &[&[2, 2, 4], &[8]], Options::default());
    let options = LayerNormOptions { scale: None, shift: None, ..LayerNormOptions::default() };
    check(|net, p| net.layer_norm(p[0], &options), &[&[2, 4]], Options::default());
}

#[test]
fn layer_norm_refuses_unsupported_axes() {
    let options = LayerNormOptions { begin_norm_axis: 2, ..LayerNormOptions::default() };
    assert_eq!(
        build_error(|net, v| net.layer_norm(v[0], &options), &[&[-1, 3]]),
        "`layer_norm` expects `begin_norm_axis` in 1..2, got 2"
    );
}

#[test]
fn l2_normalize_gives_vectors_of_length_one() {
    let (dims, y) = compute_of(|net, p| net.l2_normalize(p[0], -1), &[(&[2, 3], X)]);
    assert_eq!(dims, [2, 3]);
    assert_near(&y, &[0.2182179, -0.4364358, 0.8728716, 0.0, 0.8320503, -0.5547002]);
    // Zeros stay zeros.
    let (_, zeros) = compute_of(|net, p| net.l2_normalize(p[0], 1), &[(&[1, 2], &[0.0, 0.0])]);
    assert_near(&zeros, &[0.0, 0.0]);
    for axis in [0, 1, 2] {
        check(|net, p| net.l2_normalize(p[0], axis), &[&[2, 3, 2]], Options::range(0.5, 2.0));
    }
    assert_eq!(
        build_error(|net, v| net.l2_normalize(v[0], 2), &[&[-1, 3]]),
        "`l2_normalize` expects an axis of [-1, 3], got 2"
    );
}

/// A program with `batch_norm` over fed rows of two, and its executor.
fn batch_norm(options: &BatchNormOptions) -> (Net, Var, Executor) {
    let mut net = Net::new();
    let x = net.data("x", &[-1, 2], DType::F32).unwrap();
    let y = net.batch_norm(x, options).unwrap();
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup).unwrap();
    (net, y, executor)
}

fn rows_of_two(x: &[f32]) -> Feed {
    Feed::new().floats("x", 2, x.to_vec()).unwrap()
}

#[test]
fn batch_norm_normalises_by_the_batch_and_evaluates_by_the_running_statistics() {
    let (net, y, mut executor) = batch_norm(&BatchNormOptions::default());
    let batch = [1.0, 10.0, 2.0, 30.0, 6.0, 20.0];
    let got = executor.run(&net.main, rows_of_two(&batch), &[y]).unwrap();
    assert_tensor(&got[0], &[3, 2], &[-0.9258191, -1.224745, -0.4629096, 1.224745, 1.388729, 0.0]);
    let names = ["batch_norm_0.b_0", "batch_norm_0.w_0", "batch_norm_0.w_1", "batch_norm_0.w_2"];
    assert_eq!(executor.scope().names(), names);
    let state = |executor: &Executor, i: usize| executor.scope().get(names[i]).unwrap();
    assert_tensor(&state(&executor, 1), &[2], &[1.0, 1.0]);
    assert_tensor(&state(&executor, 2), &[2], &[0.3, 2.0]);
    assert_tensor(&state(&executor, 3), &[2], &[1.366667, 7.566667]);
    // Evaluation: one row is enough, and the statistics do not change.
    let got = executor.run(&net.main.clone_for_test(), rows_of_two(&[1.0, 10.0]), &[y]).unwrap();
    assert_tensor(&got[0], &[1, 2], &[0.5987771, 2.908288]);
    assert_tensor(&state(&executor, 2), &[2], &[0.3, 2.0]);
    assert_tensor(&state(&executor, 3), &[2], &[1.366667, 7.566667]);
}

#[test]
fn batch_norm_with_global_statistics_leaves_them_alone() {
    let options = BatchNormOptions {
        use_global_stats: true,
        epsilon: 0.0,
        moving_mean_name: Some("mean".into()),
        moving_variance_name: Some("variance".into()),
        ..BatchNormOptions::default()
    };
    let (net, y, mut executor) = batch_norm(&options);
    executor.scope().set("mean", Tensor::from_f32(&[2], vec![1.0, 2.0]).unwrap()).unwrap();
    executor.scope().set("variance", Tensor::from_f32(&[2], vec![4.0, 0.25]).unwrap()).unwrap();
    // (5 - 1) / 2 and (3 - 2) / 0.5.
    let got = executor.run(&net.main, rows_of_two(&[5.0, 3.0]), &[y]).unwrap();
    assert_tensor(&got[0], &[1, 2], &[2.0, 2.0]);
    assert_tensor(&executor.scope().get("mean").unwrap(), &[2], &[1.0, 2.0]);
}

#[test]
fn batch_norm_has_the_gradient_of_finite_differences() {
    let options = |channels_last, use_global_stats| BatchNormOptions {
        scale: ParamAttr::named("p_1"),
        bias: ParamAttr::named("p_2"),
        channels_last,
        use_global_stats,
        ..BatchNormOptions::default()
    };
    check_in_training(|net, p| net.batch_norm(p[0], &options(false, false)), &[&[5, 3], &[3], &[3]]);
    check_in_training(|net, p| net.batch_norm(p[0], &options(false, false)), &[&[3, 2, 2, 2], &[2], &[2]]);
    check_in_training(|net, p| net.batch_norm(p[0], &options(true, false)), &[&[3, 2, 2], &[2], &[2]]);
    // With fixed statistics, training and evaluation have the same formula, which the harness can check with other uses.
    check(|net, p| net.batch_norm(p[0], &options(false, true)), &[&[3, 2, 2], &[2], &[2]], Options::default());
}

#[test]
fn batch_norm_refuses_unsupported_shapes() {
    assert_eq!(
        build_error(|net, v| net.batch_norm(v[0], &BatchNormOptions::default()), &[&[-1]]),
        "`batch_norm` expects [N, C] or [N, C, ..] with fixed channels in axis 1, got [-1]"
    );
}

fn dropout(probability: f32, mode: DropoutMode, seed: Option<u64>) -> Dropout {
    Dropout { probability, mode, seed }
}

/// The result of dropout on ones, `rows` of ten, in some steps of training and one of evaluation.
fn ones_through(dropout: Dropout, rows: usize, steps: usize) -> (Vec<Vec<f32>>, Vec<f32>) {
    let mut net = Net::with_seed(3);
    let x = net.data("x", &[-1, 10], DType::F32).unwrap();
    let y = net.dropout_with(x, dropout).unwrap();
    let mut executor = Executor::new(Arc::new(Scope::new()));
    let feed = || Feed::new().floats("x", 10, vec![1.0; 10 * rows]).unwrap();
    let mut run = |program| executor.run(program, feed(), &[y]).unwrap()[0].f32s().unwrap().to_vec();
    ((0..steps).map(|_| run(&net.main)).collect(), run(&net.main.clone_for_test()))
}

#[test]
fn dropout_keeps_the_expectation_in_both_modes() {
    let p = 0.3f32;
    for (mode, kept, evaluated) in
        [(DropoutMode::DowngradeInInfer, 1.0, 1.0 - p), (DropoutMode::UpscaleInTrain, 1.0 / (1.0 - p), 1.0)]
    {
        let (steps, evaluation) = ones_through(dropout(p, mode, None), 10_000, 1);
        assert!(steps[0].iter().all(|&y| y == 0.0 || (y - kept).abs() < 1e-6));
        // 100,000 draws: the standard deviation of the mean is 0.0015 of the kept value.
        let mean = steps[0].iter().sum::<f32>() / steps[0].len() as f32;
        assert!((mean - kept * (1.0 - p)).abs() < 0.01, "{mean}");
        assert!(evaluation.iter().all(|&y| (y - evaluated).abs() < 1e-6));
    }
}

#[test]
fn dropout_repeats_with_the_run_and_changes_with_the_step() {
    let each = |seed| ones_through(dropout(0.5, DropoutMode::default(), seed), 10, 3).0;
    let (first, second) = (each(None), each(None));
    assert_eq!(first, second, "a repeated run drops the same elements");
    assert_ne!(first[0], first[1], "each step drops others");
    assert_ne!(first[1], first[2]);
    // With a fixed seed, as in PaddlePaddle, every step drops the same elements.
    let fixed = each(Some(1));
    assert_eq!(fixed[0], fixed[1]);
    assert_ne!(fixed[0], each(Some(2))[0]);
}

#[test]
fn dropout_with_probability_0_and_1() {
    let all = |p| ones_through(dropout(p, DropoutMode::UpscaleInTrain, None), 3, 1).0.remove(0);
    assert_eq!(all(0.0), [1.0; 30]);
    assert_eq!(all(1.0), [0.0; 30]);
    let mut net = Net::new();
    let x = net.data("x", &[-1, 1], DType::F32).unwrap();
    assert_eq!(net.dropout(x, 1.5).unwrap_err().to_string(), "`dropout_prob` must be in [0, 1], got 1.5");
}

#[test]
fn dropout_has_the_gradient_of_finite_differences() {
    for mode in [DropoutMode::DowngradeInInfer, DropoutMode::UpscaleInTrain] {
        check_in_training(|net, p| net.dropout_with(p[0], dropout(0.4, mode, Some(5))), &[&[4, 5]]);
    }
    // Nothing is dropped: training and evaluation agree, and the harness adds other uses.
    check(|net, p| net.dropout(p[0], 0.0), &[&[2, 3]], Options::default());
}
