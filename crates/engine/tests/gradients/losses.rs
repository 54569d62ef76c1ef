//! Losses and accuracy. Numbers without a calculation beside them come from tests/golden/ops.py.

use openfleet_engine::op::ClassLabels;
use openfleet_engine::{DType, Feed, Net, Result, Var};

use crate::constants::{assert_near, assert_tensor, floats, integers};
use crate::harness::{Options, build_error, check, compute, compute_of, drawn};

const X: &[f32] = &[0.5, -1.0, 2.0, 0.0, 3.0, -2.0];
const SOFT: &[&[f32]] = &[&[0.2, 0.3, 0.5], &[1.0, 0.0, 0.0]];
const P: &[f32] = &[0.1, 0.5, 0.9, 0.75];
const Z: &[&[f32]] = &[&[0.0, 1.0], &[1.0, 0.25]];

/// Feeds scores `x` [B, C] and labels [B, 1].
fn fed(
    loss: impl Fn(&mut Net, Var, Var) -> Result<Var>,
    classes: usize,
    x: &[f32],
    labels: &[i64],
) -> Result<Vec<f32>> {
    let feed = Feed::new().floats("x", classes, x.to_vec())?.ints("label", 1, labels)?;
    let build = |net: &mut Net| {
        let x = net.data("x", &[-1, classes as i64], DType::F32)?;
        let labels = net.data("label", &[-1, 1], DType::I64)?;
        loss(net, x, labels)
    };
    Ok(compute(build, feed)?.f32s().unwrap().to_vec())
}

#[test]
fn softmax_is_a_distribution_along_its_axis() {
    let (dims, rows) = compute_of(|net, p| net.softmax(p[0]), &[(&[2, 3], X)]);
    assert_eq!(dims, [2, 3]);
    assert_near(&rows, &[0.1752904, 0.03911257, 0.785597, 0.04712342, 0.9464991, 0.006377461]);
    let (_, columns) = compute_of(|net, p| net.softmax_along(p[0], 0), &[(&[2, 3], X)]);
    assert_near(&columns, &[0.6224593, 0.01798621, 0.9820138, 0.3775407, 0.9820138, 0.01798621]);
    // These values would overflow if the maximum were not subtracted.
    let (_, large) = compute_of(|net, p| net.softmax(p[0]), &[(&[1, 2], &[1000.0, 1000.0])]);
    assert_near(&large, &[0.5, 0.5]);
    for axis in [-1, 0, 1] {
        check(|net, p| net.softmax_along(p[0], axis), &[&[2, 3, 2]], Options::default());
    }
    assert_eq!(
        build_error(|net, v| net.softmax_along(v[0], 2), &[&[-1, 3]]),
        "`softmax` expects an axis of [-1, 3], got 2"
    );
}

#[test]
fn softmax_with_cross_entropy_agrees_with_the_formula_for_both_kinds_of_labels() {
    let loss = fed(|net, x, z| net.softmax_with_cross_entropy(x, z), 3, X, &[2, 0]).unwrap();
    assert_near(&loss, &[0.2413113, 3.054985]);
    let (dims, soft) = compute_of(
        |net, p| {
            let z = floats(net, SOFT);
            Ok(net.softmax_with_cross_entropy_of(p[0], z, ClassLabels::soft())?.0)
        },
        &[(&[2, 3], X)],
    );
    assert_eq!(dims, [2, 1]);
    assert_near(&soft, &[1.441311, 3.054985]);
    let softmax = |net: &mut Net, x, z| Ok(net.softmax_with_cross_entropy_of(x, z, ClassLabels::default())?.1);
    let softmax = fed(softmax, 3, X, &[2, 0]).unwrap();
    assert_near(&softmax[..3], &[0.1752904, 0.03911257, 0.785597]);
    // A logit whose exponential would overflow: the loss is the difference to the maximum.
    assert_near(&fed(|net, x, z| net.softmax_with_cross_entropy(x, z), 2, &[0.0, 500.0], &[0]).unwrap(), &[500.0]);
}

#[test]
fn softmax_with_cross_entropy_has_the_gradient_of_finite_differences() {
    let labels = |net: &mut Net| integers(net, &[2, 0, 1]);
    check(
        |net, p| {
            let z = labels(net);
            net.softmax_with_cross_entropy(p[0], z)
        },
        &[&[3, 4]],
        Options::default(),
    );
    // The gradient is exact even for labels that do not add up to 1.
    check(
        |net, p| {
            let z = floats(net, &[&[0.1, 0.2, 0.3], &[0.0, 2.0, 0.5]]);
            Ok(net.softmax_with_cross_entropy_of(p[0], z, ClassLabels::soft())?.0)
        },
        &[&[2, 3]],
        Options::default(),
    );
    // Batches of several sizes, with ignored rows.
    check(
        |net, p| {
            let x = net.data("x", &[-1, 4], DType::F32)?;
            let z = net.data("label", &[-1, 1], DType::I64)?;
            let logits = net.add(x, p[0])?;
            let kind = ClassLabels { ignore_index: 3, ..ClassLabels::default() };
            Ok(net.softmax_with_cross_entropy_of(logits, z, kind)?.0)
        },
        &[&[4]],
        Options::default().fed(|rows| {
            let labels: Vec<i64> = (0..rows as i64).map(|row| (row * 3) % 4).collect();
            Feed::new().floats("x", 4, drawn(3, 4 * rows, (-1.0, 1.0))).unwrap().ints("label", 1, &labels).unwrap()
        }),
    );
}

#[test]
fn ignored_rows_have_no_loss() {
    let (x, labels) = ([0.25, 0.75, 0.5, 0.5], [-100, 0]);
    assert_near(&fed(|net, p, z| net.cross_entropy(p, z), 2, &x, &labels).unwrap(), &[0.0, 0.5f32.ln().abs()]);
    let loss = fed(|net, x, z| net.softmax_with_cross_entropy(x, z), 2, &x, &labels).unwrap();
    assert_near(&loss, &[0.0, 0.5f32.ln().abs()]);
}

#[test]
fn cross_entropy_is_the_logarithm_of_the_right_probability() {
    let p = [0.2, 0.3, 0.5, 0.9, 0.1, 0.0];
    let loss = fed(|net, p, z| net.cross_entropy(p, z), 3, &p, &[1, 0]).unwrap();
    assert_near(&loss, &[-(0.3f32.ln()), -(0.9f32.ln())]);
    // 0.2 ln 0.2 + 0.3 ln 0.3 + 0.5 ln 0.5 = -1.029653; a probability of 0 for a class that is never the label costs nothing.
    let (dims, soft) = compute_of(
        |net, v| {
            let z = floats(net, SOFT);
            net.cross_entropy_with(v[0], z, ClassLabels::soft())
        },
        &[(&[2, 3], &p)],
    );
    assert_eq!(dims, [2, 1]);
    assert_near(&soft, &[1.029653, -(0.9f32.ln())]);
    // A probability of 0 for the right class is expensive, not infinite.
    assert_near(&fed(|net, p, z| net.cross_entropy(p, z), 3, &p, &[1, 2]).unwrap()[1..], &[46.0517]);
    check(
        |net, p| {
            let z = integers(net, &[2, 0]);
            net.cross_entropy(p[0], z)
        },
        &[&[2, 3]],
        Options::range(0.2, 0.9),
    );
    check(
        |net, p| {
            let z = floats(net, SOFT);
            net.cross_entropy_with(p[0], z, ClassLabels::soft())
        },
        &[&[2, 3]],
        Options::range(0.2, 0.9),
    );
}

#[test]
fn a_bad_label_or_probability_is_named_with_its_row() {
    let p = [0.5, 0.5, 0.5, 0.5];
    let message = |result: Result<Vec<f32>>| result.unwrap_err().to_string();
    assert_eq!(
        message(fed(|net, p, z| net.cross_entropy(p, z), 2, &p, &[1, 2])),
        "`cross_entropy`: label `label` must be a class in 0..2, got 2 at row 1"
    );
    assert_eq!(
        message(fed(|net, p, z| net.softmax_with_cross_entropy(p, z), 2, &p, &[-1, 0])),
        "`softmax_with_cross_entropy`: label `label` must be a class in 0..2, got -1 at row 0"
    );
    assert_eq!(
        message(fed(|net, p, z| net.cross_entropy(p, z), 2, &[0.5, 0.5, 2.0, 0.5], &[0, 0])),
        "`cross_entropy`: a probability must be in [0, 1], got 2 at row 1"
    );
    let binary = |loss: fn(&mut Net, Var, Var) -> Result<Var>, p: f32| {
        let build = move |net: &mut Net, p, z| {
            let z = net.cast(z, DType::F32)?;
            loss(net, p, z)
        };
        message(fed(build, 1, &[0.5, 0.5, p], &[1, 1, 1]))
    };
    assert_eq!(binary(Net::log_loss, -0.5), "`log_loss`: a probability must be in [0, 1], got -0.5 at row 2");
    assert_eq!(
        binary(Net::binary_cross_entropy, f32::NAN),
        "`binary_cross_entropy`: a probability must be in [0, 1], got NaN at row 2"
    );
}

#[test]
fn labels_of_the_wrong_kind_or_shape_are_refused() {
    assert_eq!(
        build_error(|net, v| net.cross_entropy(v[0], v[1]), &[&[-1, 3], &[-1, 1]]),
        "`cross_entropy` expects scores [.., C] and one integer label [.., 1] for each row, \
         got [-1, 3] and float labels [-1, 1]"
    );
    assert_eq!(
        build_error(|net, v| net.softmax_with_cross_entropy_of(v[0], v[1], ClassLabels::soft()), &[&[-1, 3], &[-1, 2]]),
        "`softmax_with_cross_entropy` expects soft labels that are floats of the scores' shape, \
         got [-1, 3] and [-1, 2]"
    );
    assert_eq!(
        build_error(|net, v| net.log_loss(v[0], v[1]), &[&[-1, 1], &[-1, 2]]),
        "`log_loss` expects probabilities and labels of one shape, got [-1, 1] and [-1, 2]"
    );
    assert_eq!(
        build_error(|net, v| net.binary_cross_entropy(v[0], v[1]), &[&[-1, 1], &[-1, 2]]),
        "`binary_cross_entropy` expects probabilities and labels of one shape, got [-1, 1] and [-1, 2]"
    );
    assert_eq!(
        build_error(|net, v| net.square_error_cost(v[0], v[1]), &[&[-1, 1], &[-1, 2]]),
        "`square_error_cost` expects predictions and labels of one shape, got [-1, 1] and [-1, 2]"
    );
    // The last dimension of labels is optional.
    let mut net = Net::new();
    let x = net.data("x", &[-1, 3], DType::F32).unwrap();
    let label = net.data("label", &[-1], DType::I64).unwrap();
    net.cross_entropy(x, label).unwrap();
}

fn of_probabilities(loss: fn(&mut Net, Var, Var) -> Result<Var>, wanted: &[f32]) {
    let build = |net: &mut Net, p: &[Var]| {
        let z = floats(net, Z);
        loss(net, p[0], z)
    };
    let (dims, got) = compute_of(build, &[(&[2, 2], P)]);
    assert_eq!(dims, [2, 2]);
    assert_near(&got, wanted);
    check(build, &[&[2, 2]], Options::range(0.2, 0.8));
}

#[test]
fn binary_losses_agree_with_their_formulas() {
    of_probabilities(Net::log_loss, &[0.1052494, 0.6929472, 0.1052494, 1.111308]);
    of_probabilities(Net::binary_cross_entropy, &[0.1053605, std::f32::consts::LN_2, 0.1053605, 1.111641]);
    // 0.1^2, 0.5^2, 0.1^2, 0.5^2.
    of_probabilities(Net::square_error_cost, &[0.01, 0.25, 0.01, 0.25]);
    check(|net, p| net.square_error_cost(p[0], p[1]), &[&[2, 3], &[2, 3]], Options::default());
    // The same variable as both inputs: the two gradients cancel.
    check(|net, p| net.square_error_cost(p[0], p[0]), &[&[2, 3]], Options::default());
}

#[test]
fn a_certain_wrong_prediction_costs_100() {
    let build = |net: &mut Net, p: &[Var]| {
        let z = floats(net, &[&[1.0, 0.0, 1.0, 0.0]]);
        net.binary_cross_entropy(p[0], z)
    };
    let (_, loss) = compute_of(build, &[(&[1, 4], &[0.0, 1.0, 1.0, 0.0])]);
    assert_near(&loss, &[100.0, 100.0, 0.0, 0.0]);
}

#[test]
fn accuracy_counts_labels_among_the_highest_and_lower_classes_win_ties() {
    let scores = [0.1, 0.7, 0.2, 0.4, 0.3, 0.3, 0.5, 0.5, 0.0, 0.2, 0.2, f32::NAN];
    let run = |k, labels: &[i64]| {
        let feed = || Feed::new().floats("x", 3, scores.to_vec()).unwrap().ints("label", 1, labels).unwrap();
        let get = |which: usize| {
            let build = |net: &mut Net| {
                let x = net.data("x", &[-1, 3], DType::F32)?;
                let labels = net.data("label", &[-1, 1], DType::I64)?;
                let vars = net.accuracy(x, labels, k)?;
                Ok([vars.accuracy, vars.correct, vars.total][which])
            };
            compute(build, feed())
        };
        get(0).map(|accuracy| {
            let count = |which| get(which).unwrap().i64s().unwrap()[0];
            (accuracy.f32s().unwrap()[0], count(1), count(2))
        })
    };
    // Row 0: right. Row 1: class 1 is second. Row 2: class 0 comes before class 1. Row 3: NaN is never right.
    assert_eq!(run(1, &[1, 1, 0, 2]).unwrap(), (0.5, 2, 4));
    assert_eq!(run(1, &[1, 1, 1, 0]).unwrap(), (0.5, 2, 4));
    // Of two equal second-highest scores, only the first is among the two highest.
    assert_eq!(run(2, &[1, 1, 1, 2]).unwrap(), (0.75, 3, 4));
    assert_eq!(run(2, &[1, 2, 1, 1]).unwrap(), (0.75, 3, 4));
    assert_eq!(run(3, &[0, 2, 2, 1]).unwrap(), (1.0, 4, 4));
    assert_eq!(
        run(1, &[0, 0, 3, 0]).unwrap_err().to_string(),
        "`accuracy`: label `label` must be a class in 0..3, got 3 at row 2"
    );
    assert_eq!(
        run(4, &[0, 0, 0, 0]).unwrap_err().to_string(),
        "`accuracy` expects float scores of at least k = 4 classes, got [-1, 3]"
    );
}

#[test]
fn one_hot_has_a_single_one_in_each_row() {
    let run = |zeros: bool, ids: &[i64]| {
        let build = |net: &mut Net| {
            let ids = net.data("ids", &[-1, 2], DType::I64)?;
            if zeros { net.one_hot_or_zeros(ids, 3) } else { net.one_hot(ids, 3) }
        };
        compute(build, Feed::new().ints("ids", 2, ids)?)
    };
    let rows = [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0];
    assert_tensor(&run(false, &[1, 0, 2, 1]).unwrap(), &[2, 2, 3], &rows);
    assert_tensor(&run(true, &[-1, 3]).unwrap(), &[1, 2, 3], &[0.0; 6]);
    assert_eq!(
        run(false, &[1, 0, 3, 1]).unwrap_err().to_string(),
        "`one_hot`: an integer must be in 0..3, got 3 at row 1"
    );
    assert_eq!(
        build_error(|net, v| net.one_hot(v[0], 3), &[&[-1, 1]]),
        "`one_hot` expects integers of a fixed shape, got floats; `cast` them first"
    );
}
