//! Elementwise ops on one tensor or on two that are broadcast.

use openfleet_engine::{DType, Feed, Net, Result, Tensor, Var};

use crate::harness::{Options, build_error, check, compute, compute_of, drawn, gradients_at};

type Unary = fn(&mut Net, Var) -> Result<Var>;
type Binary = fn(&mut Net, Var, Var) -> Result<Var>;

/// Every way in which two tensors can be broadcast.
const BROADCASTS: &[(&[usize], &[usize])] = &[
    (&[2, 3], &[2, 3]),
    // A row vector, as either input.
    (&[2, 3], &[3]),
    (&[3], &[2, 3]),
    // A single number.
    (&[2, 3], &[1]),
    (&[1], &[1]),
    // A column.
    (&[2, 3], &[2, 1]),
    // Both are repeated.
    (&[2, 1], &[1, 3]),
    (&[2, 1, 2], &[3, 1]),
    (&[2, 3, 2, 2], &[3, 1, 2]),
    // Longer than the eight lanes of a sum.
    (&[2, 11], &[2, 1]),
];

/// Numbers 0.1 apart, so that two such lists with different offsets have no kink of `maximum` within a finite difference.
fn spaced(seed: u64, count: usize, offset: f32) -> Vec<f32> {
    drawn(seed, count, (-1.0, 1.0)).into_iter().map(|v| (v * 10.0).round() / 10.0 + offset).collect()
}

fn check_binary(op: Binary, values: impl Fn(u64, usize, f32) -> Vec<f32> + Copy + 'static) {
    for &(x, y) in BROADCASTS {
        let (x_values, y_values) = (values(1, x.iter().product(), 0.0), values(2, y.iter().product(), 0.05));
        check(|net, p| op(net, p[0], p[1]), &[x, y], Options::values(&[&x_values, &y_values]));
    }
    // A batch of any size, broadcast with a row vector, a scalar, and a column as long as the batch.
    check(
        |net, p| {
            let x = net.data("x", &[-1, 3], DType::F32)?;
            let column = net.data("column", &[-1, 1], DType::F32)?;
            let row = op(net, x, p[0])?;
            let number = op(net, p[1], x)?;
            let sum = net.add(row, number)?;
            let gated = net.multiply(p[1], column)?;
            let own = net.add(gated, sum)?;
            net.multiply(own, sum)
        },
        &[&[3], &[1]],
        Options::values(&[&values(3, 3, 0.0), &values(4, 1, 0.0)]).fed(move |rows| {
            let feed = Feed::new().floats("x", 3, values(5, rows * 3, 0.05)).unwrap();
            feed.floats("column", 1, values(6, rows, 0.0)).unwrap()
        }),
    );
}

#[test]
fn arithmetic_of_two_tensors_has_the_gradient_of_finite_differences() {
    let small = |seed, count, _| drawn(seed, count, (-1.0, 1.0));
    check_binary(Net::add, small);
    check_binary(Net::subtract, small);
    check_binary(Net::multiply, small);
    check_binary(Net::divide, |seed, count, _| drawn(seed, count, (0.5, 1.5)));
    check_binary(Net::maximum, spaced);
    check_binary(Net::minimum, spaced);
}

#[test]
fn an_op_on_a_tensor_with_itself_adds_both_gradients() {
    for op in [Net::add, Net::subtract, Net::multiply, Net::divide] as [Binary; 4] {
        check(|net, p| op(net, p[0], p[0]), &[&[2, 3]], Options::range(0.5, 1.5));
    }
    // Also with a part of itself.
    check(
        |net, p| {
            let row = net.slice(p[0], &[0], &[0], &[1])?;
            net.multiply(p[0], row)
        },
        &[&[2, 3]],
        Options::default(),
    );
}

#[test]
fn an_axis_aligns_the_lower_rank_tensor() {
    // "If shape(X) = (2, 3, 4, 5), shape(Y) = (2,), with axis=0": the examples of PaddlePaddle's manual, smaller.
    for (y, axis) in [(&[2][..], 0), (&[3, 2], 1), (&[2, 3], 0), (&[3], 1), (&[3, 1], 1), (&[3, 2, 1, 1], 1)] {
        check(|net, p| net.multiply_at(p[0], p[1], axis), &[&[2, 3, 2], y], Options::default());
        check(|net, p| net.divide_at(p[1], p[0], axis), &[&[2, 3, 2], y], Options::range(0.5, 1.5));
    }
    let x: (&[usize], &[f32]) = (&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let y: (&[usize], &[f32]) = (&[2], &[10.0, 20.0]);
    let sums = compute_of(|net, p| net.add_at(p[0], p[1], 0), &[x, y]);
    assert_eq!(sums, (vec![2, 3], vec![11.0, 12.0, 13.0, 24.0, 25.0, 26.0]));
    let differences = compute_of(|net, p| net.subtract_at(p[1], p[0], 0), &[x, y]);
    assert_eq!(differences, (vec![2, 3], vec![9.0, 8.0, 7.0, 16.0, 15.0, 14.0]));
    let largest = compute_of(|net, p| net.maximum_at(p[0], p[1], 0), &[x, y]);
    assert_eq!(largest.1, [10.0, 10.0, 10.0, 20.0, 20.0, 20.0]);
    let smallest = compute_of(|net, p| net.minimum_at(p[0], p[1], 0), &[x, y]);
    assert_eq!(smallest.1, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn arithmetic_of_two_tensors_agrees_with_a_calculation_by_hand() {
    let x: (&[usize], &[f32]) = (&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let of = |op: Binary, y: (&[usize], &[f32])| compute_of(|net, p| op(net, p[0], p[1]), &[x, y]).1;
    let row: (&[usize], &[f32]) = (&[3], &[1.0, 2.0, 4.0]);
    assert_eq!(of(Net::add, row), [2.0, 4.0, 7.0, 5.0, 7.0, 10.0]);
    assert_eq!(of(Net::subtract, row), [0.0, 0.0, -1.0, 3.0, 3.0, 2.0]);
    assert_eq!(of(Net::multiply, row), [1.0, 4.0, 12.0, 4.0, 10.0, 24.0]);
    assert_eq!(of(Net::divide, row), [1.0, 1.0, 0.75, 4.0, 2.5, 1.5]);
    assert_eq!(of(Net::maximum, row), [1.0, 2.0, 4.0, 4.0, 5.0, 6.0]);
    assert_eq!(of(Net::minimum, row), [1.0, 2.0, 3.0, 1.0, 2.0, 4.0]);
    let column: (&[usize], &[f32]) = (&[2, 1], &[10.0, 100.0]);
    assert_eq!(of(Net::multiply, column), [10.0, 20.0, 30.0, 400.0, 500.0, 600.0]);
    assert_eq!(of(Net::add, (&[1], &[0.5])), [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]);
    // [2, 1] and [1, 2] make a table of all pairs.
    let pairs = compute_of(|net, p| net.add(p[0], p[1]), &[(&[2, 1], &[1.0, 2.0]), (&[1, 2], &[10.0, 20.0])]);
    assert_eq!(pairs, (vec![2, 2], vec![11.0, 21.0, 12.0, 22.0]));
}

#[test]
fn a_batch_broadcasts_with_a_column_of_its_own_length() {
    let masked = |rows: usize| {
        let feed = Feed::new().floats("x", 2, (0..rows * 2).map(|v| v as f32).collect()).unwrap();
        let feed = feed.floats("mask", 1, (0..rows).map(|r| (r % 2) as f32).collect()).unwrap();
        compute(
            |net| {
                let x = net.data("x", &[-1, 2], DType::F32)?;
                let mask = net.data("mask", &[-1, 1], DType::F32)?;
                net.multiply(x, mask)
            },
            feed,
        )
        .unwrap()
    };
    assert_eq!(masked(3).f32s().unwrap(), [0.0, 0.0, 2.0, 3.0, 0.0, 0.0]);
    assert_eq!(masked(1).dims(), [1, 2]);
}

#[test]
fn tensors_that_cannot_be_broadcast_are_refused_with_both_shapes() {
    for (op, name) in [
        (Net::add as Binary, "elementwise_add"),
        (Net::subtract, "elementwise_sub"),
        (Net::multiply, "elementwise_mul"),
        (Net::divide, "elementwise_div"),
        (Net::maximum, "elementwise_max"),
        (Net::minimum, "elementwise_min"),
    ] {
        assert_eq!(
            build_error(|net, v| op(net, v[0], v[1]), &[&[-1, 3], &[2]]),
            format!("`{name}` expects dimensions that are equal or 1, aligned at the right, got [-1, 3] and [2]")
        );
    }
    assert_eq!(
        build_error(|net, v| net.multiply_at(v[0], v[1], 1), &[&[2, 3, 4], &[2, 3]]),
        "`elementwise_mul` expects dimensions that are equal or 1 from axis 1 on, got [2, 3, 4] and [2, 3]"
    );
    assert_eq!(
        build_error(|net, v| net.add_at(v[0], v[1], 2), &[&[2, 3, 4], &[4, 3]]),
        "`elementwise_add` expects an axis at which one of [2, 3, 4] and [4, 3] fits into the other, got 2"
    );
    for axis in [-2, 4] {
        let message = build_error(|net, v| net.add_at(v[0], v[1], axis), &[&[2, 3, 4], &[4]]);
        assert!(message.ends_with(&format!("got {axis}")), "{message}");
    }
}

/// An op with a range that avoids kinks and poles.
fn functions() -> Vec<(&'static str, Unary, (f32, f32))> {
    vec![
        ("abs", Net::abs, (0.2, 1.0)),
        ("abs", Net::abs, (-1.0, -0.2)),
        ("exp", Net::exp, (-1.0, 1.0)),
        ("log", Net::log, (0.5, 2.0)),
        ("sqrt", Net::sqrt, (0.5, 2.0)),
        ("square", Net::square, (-1.0, 1.0)),
        ("tanh", Net::tanh, (-1.5, 1.5)),
        ("pow", |net, x| net.pow(x, 3.0), (-1.0, 1.0)),
        ("pow", |net, x| net.pow(x, -0.5), (0.5, 2.0)),
        ("scale", |net, x| net.scale(x, -2.5, 0.75), (-1.0, 1.0)),
        ("scale", |net, x| net.scale_with(x, -2.5, 0.75, false), (-1.0, 1.0)),
        ("clip", |net, x| net.clip(x, -1.0, 1.0), (-0.9, 0.9)),
        ("clip", |net, x| net.clip(x, -1.0, 1.0), (1.1, 2.0)),
    ]
}

#[test]
fn functions_of_one_tensor_have_the_gradient_of_finite_differences() {
    for (_, op, range) in functions() {
        check(|net, p| op(net, p[0]), &[&[3, 4]], Options::range(range.0, range.1));
        // A batch, and a variable used twice.
        check(
            |net, p| {
                let x = net.data("x", &[-1, 2], DType::F32)?;
                let moved = net.add(x, p[0])?;
                let y = op(net, moved)?;
                net.multiply(y, moved)
            },
            &[&[2]],
            Options::range(range.0, range.1)
                .fed(|rows| Feed::new().floats("x", 2, drawn(5, rows * 2, (-0.05, 0.05))).unwrap()),
        );
    }
}

#[test]
fn functions_of_one_tensor_agree_with_a_calculation_by_hand() {
    let of = |op: Unary, x: &[f32]| compute_of(|net, p| op(net, p[0]), &[(&[x.len()], x)]).1;
    let e = std::f32::consts::E;
    assert_eq!(of(Net::abs, &[-2.0, 0.0, 3.0]), [2.0, 0.0, 3.0]);
    assert_eq!(of(Net::exp, &[0.0, 1.0]), [1.0, e]);
    assert_eq!(of(Net::log, &[1.0, 0.0]), [0.0, f32::NEG_INFINITY]);
    assert!((of(Net::log, &[e])[0] - 1.0).abs() < 1e-6);
    assert_eq!(of(Net::sqrt, &[0.0, 9.0]), [0.0, 3.0]);
    assert_eq!(of(Net::square, &[-3.0, 0.5]), [9.0, 0.25]);
    assert!((of(Net::tanh, &[0.5])[0] - 0.462_117_16).abs() < 1e-6);
    assert_eq!(of(|net, x| net.pow(x, 2.0), &[-3.0, 2.0]), [9.0, 4.0]);
    assert_eq!(of(|net, x| net.scale(x, 2.0, 1.0), &[3.0, -1.0]), [7.0, -1.0]);
    assert_eq!(of(|net, x| net.scale_with(x, 2.0, 1.0, false), &[3.0, -1.0]), [8.0, 0.0]);
    assert_eq!(of(|net, x| net.clip(x, -1.0, 2.0), &[-5.0, 0.5, 7.0]), [-1.0, 0.5, 2.0]);
    assert!(of(|net, x| net.clip(x, -1.0, 2.0), &[f32::NAN])[0].is_nan());
}

#[test]
fn at_a_kink_the_gradient_is_paddlepaddles() {
    let at = |op: Unary, x: &[f32]| gradients_at(|net, p| op(net, p[0]), &[(&[x.len()], x)]).remove(0);
    assert_eq!(at(Net::abs, &[0.0, -0.0, -3.0]), [0.0, 0.0, -1.0]);
    assert_eq!(at(|net, x| net.clip(x, -1.0, 1.0), &[-1.0, 0.0, 1.0, 2.0]), [0.0, 1.0, 0.0, 0.0]);
    // Of two equal numbers, y is taken.
    for op in [Net::maximum, Net::minimum] as [Binary; 2] {
        let gradients = gradients_at(|net, p| op(net, p[0], p[1]), &[(&[1], &[2.0]), (&[1], &[2.0])]);
        assert_eq!(gradients, [[0.0], [1.0]]);
    }
}

#[test]
fn functions_of_floats_refuse_integers_and_say_what_to_do() {
    for (name, op, _) in functions() {
        let message = build_error(
            |net, _| {
                let x = net.data("label", &[-1, 1], DType::I64)?;
                op(net, x)
            },
            &[],
        );
        assert_eq!(message, format!("`{name}` expects floats, got integers as input 0; `cast` them first"));
    }
    let message = build_error(|net, v| net.clip(v[0], 2.0, 1.0), &[&[-1, 2]]);
    assert_eq!(message, "`clip` expects min <= max, got min 2 and max 1");
}

#[test]
fn further_functions_have_their_values_and_slopes() {
    for (op, range) in [
        (Net::sin as Unary, (-2.0, 2.0)),
        (Net::cos, (-2.0, 2.0)),
        (Net::log1p, (-0.5, 2.0)),
        (Net::erf, (-1.5, 1.5)),
        // Without slope, between two integers.
        (Net::floor, (0.2, 0.8)),
        (Net::ceil, (0.2, 0.8)),
        (Net::round, (0.6, 0.9)),
        (Net::sign, (0.2, 0.8)),
    ] {
        check(|net, p| op(net, p[0]), &[&[2, 3]], Options::range(range.0, range.1));
    }
    let x: &[f32] = &[-1.5, -0.4, 0.0, 0.5, 1.2];
    let values = |op: Unary| compute_of(|net, p| op(net, p[0]), &[(&[5], x)]).1;
    assert_eq!(values(Net::floor), [-2.0, -1.0, 0.0, 0.0, 1.0]);
    assert_eq!(values(Net::ceil), [-1.0, 0.0, 0.0, 1.0, 2.0]);
    assert_eq!(values(Net::round), [-2.0, 0.0, 0.0, 1.0, 1.0]);
    assert_eq!(values(Net::sign), [-1.0, -1.0, 0.0, 1.0, 1.0]);
    let tiny = compute_of(|net, p| net.log1p(p[0]), &[(&[1], &[1e-8])]).1;
    assert_eq!(tiny, [1e-8], "exact near 0");
}

#[test]
fn integers_have_bits_and_remainders() {
    let run = |op: Binary, y: i64| {
        let build = |net: &mut Net| {
            let x = net.data("x", &[-1, 3], DType::I64)?;
            let y = net.fill_constant(&[1], y)?;
            op(net, x, y)
        };
        compute(build, Feed::new().ints("x", 3, &[7, -7, 6]).unwrap())
    };
    let ints = |values: &[i64]| Tensor::from_i64(&[1, 3], values.to_vec()).unwrap();
    assert_eq!(run(Net::add_integers, 5).unwrap(), ints(&[12, -2, 11]));
    assert_eq!(run(Net::subtract_integers, 5).unwrap(), ints(&[2, -12, 1]));
    assert_eq!(run(Net::multiply_integers, -5).unwrap(), ints(&[-35, 35, -30]));
    assert_eq!(run(Net::bitwise_and, 5).unwrap(), ints(&[5, 1, 4]));
    assert_eq!(run(Net::bitwise_or, 8).unwrap(), ints(&[15, -7, 14]));
    assert_eq!(run(Net::bitwise_xor, -1).unwrap(), ints(&[-8, 6, -7]));
    assert_eq!(run(Net::floor_divide, 4).unwrap(), ints(&[1, -2, 1]));
    assert_eq!(run(Net::modulo, 4).unwrap(), ints(&[3, 1, 2]));
    assert_eq!(run(Net::modulo, -4).unwrap(), ints(&[-1, -3, -2]));
    for op in [Net::modulo as Binary, Net::floor_divide] {
        let error = run(op, 0).unwrap_err().to_string();
        assert!(error.contains("a divisor") && error.contains("not 0"), "{error}");
    }
    assert_eq!(
        build_error(|net, v| net.bitwise_and(v[0], v[0]), &[&[-1, 3]]),
        "`bitwise_and` expects integers, a fixed number per row, got F32"
    );
}
