//! Sums, means and maxima over axes; constants, copies and parameters without a layer.

use std::sync::Arc;

use openfleet_engine::{DType, Executor, Feed, Net, ParamAttr, Result, Scope, Var};
use openfleet_table::Initializer;

use crate::constants::{assert_near, assert_tensor};
use crate::harness::{Options, build_error, check, compute, compute_of, gradients_at};

type Reduction = fn(&mut Net, Var, &[i64], bool) -> Result<Var>;

/// Adjacent and separate axes, at the front, in the middle and at the end.
const AXES: &[&[i64]] = &[&[], &[0], &[1], &[-1], &[0, 1], &[1, 2], &[0, 2], &[1, 3], &[-1, 0], &[0, 1, 2, 3]];

#[test]
fn reductions_have_the_gradient_of_finite_differences_over_any_axes() {
    // Numbers far enough apart that a finite difference changes no maximum.
    let apart: Vec<f32> = (0..24).map(|i| (i * 7 % 24) as f32 / 10.0).collect();
    for axes in AXES {
        for keep_dim in [false, true] {
            check(|net, p| net.reduce_sum(p[0], axes, keep_dim), &[&[2, 3, 2, 2]], Options::default());
            check(|net, p| net.reduce_mean(p[0], axes, keep_dim), &[&[2, 3, 2, 2]], Options::default());
            check(|net, p| net.reduce_max(p[0], axes, keep_dim), &[&[2, 3, 2, 2]], Options::values(&[&apart]));
        }
    }
}

#[test]
fn reductions_agree_with_a_calculation_by_hand() {
    let x: &[f32] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0];
    let run = |reduce: Reduction, axes: &[i64], keep_dim| {
        compute_of(|net, p| reduce(net, p[0], axes, keep_dim), &[(&[2, 3, 2], x)])
    };
    assert_eq!(run(Net::reduce_sum, &[], false), (vec![1], vec![78.0]));
    assert_eq!(run(Net::reduce_sum, &[], true), (vec![1, 1, 1], vec![78.0]));
    assert_eq!(run(Net::reduce_sum, &[1], false), (vec![2, 2], vec![9.0, 12.0, 27.0, 30.0]));
    assert_eq!(run(Net::reduce_sum, &[2, 0], true), (vec![1, 3, 1], vec![18.0, 26.0, 34.0]));
    assert_eq!(run(Net::reduce_mean, &[-1], false), (vec![2, 3], vec![1.5, 3.5, 5.5, 7.5, 9.5, 11.5]));
    assert_eq!(run(Net::reduce_mean, &[0, 1], false), (vec![2], vec![6.0, 7.0]));
    assert_eq!(run(Net::reduce_max, &[0, 2], false), (vec![3], vec![8.0, 10.0, 12.0]));
    assert_eq!(run(Net::reduce_max, &[1], true), (vec![2, 1, 2], vec![5.0, 6.0, 11.0, 12.0]));
}

#[test]
fn reductions_over_the_batch_follow_its_size() {
    for rows in [1, 4] {
        let build = |net: &mut Net| {
            let x = net.data("x", &[-1, 2], DType::F32)?;
            net.reduce_mean(x, &[0], false)
        };
        let x = (0..rows).flat_map(|row| [row as f32, 1.0]).collect();
        let got = compute(build, Feed::new().floats("x", 2, x).unwrap()).unwrap();
        assert_tensor(&got, &[2], &[(rows - 1) as f32 / 2.0, 1.0]);
    }
}

#[test]
fn missing_or_repeated_axes_are_refused() {
    for (reduce, name) in [
        (Net::reduce_sum as Reduction, "reduce_sum"),
        (Net::reduce_mean, "reduce_mean"),
        (Net::reduce_max, "reduce_max"),
    ] {
        assert_eq!(
            build_error(|net, v| reduce(net, v[0], &[1, 3], false), &[&[-1, 3]]),
            format!("`{name}` expects axes of [-1, 3], got 3")
        );
        assert_eq!(
            build_error(|net, v| reduce(net, v[0], &[1, -1], false), &[&[-1, 3]]),
            format!("`{name}` expects each axis once, got axis 1 twice")
        );
    }
}

#[test]
fn a_constant_can_have_the_size_of_the_batch() {
    let feed = || Feed::new().floats("x", 2, vec![5.0; 6]).unwrap();
    let x = |net: &mut Net| net.data("x", &[-1, 2], DType::F32).unwrap();
    let fixed = compute(|net| net.fill_constant(&[2, 1], 0.5), feed()).unwrap();
    assert_tensor(&fixed, &[2, 1], &[0.5; 2]);
    let by_batch = |net: &mut Net| {
        let (x, ones) = (x(net), net.fill_constant(&[-1, 2], 1.0)?);
        net.add(x, ones)
    };
    assert_tensor(&compute(by_batch, feed()).unwrap(), &[3, 2], &[6.0; 6]);
    let like = |net: &mut Net| {
        let x = x(net);
        net.fill_like(x, 7i64)
    };
    let like = compute(like, feed()).unwrap();
    assert_eq!((like.dims(), like.i64s().unwrap()), (&[3, 2][..], &[7; 6][..]));
}

#[test]
fn a_copy_carries_values_and_gradients() {
    let (dims, values) = compute_of(|net, p| net.assign(p[0]), &[(&[2, 1], &[3.0, -1.0])]);
    assert_eq!((dims, values), (vec![2, 1], vec![3.0, -1.0]));
    check(|net, p| net.assign(p[0]), &[&[2, 3]], Options::default());
    let ints = |net: &mut Net| {
        let x = net.data("x", &[-1, 1], DType::I64)?;
        net.assign(x)
    };
    let got = compute(ints, Feed::new().ints("x", 1, &[-4, 9]).unwrap()).unwrap();
    assert_eq!(got.i64s().unwrap(), [-4, 9]);
    let mut net = Net::new();
    let slot = net.slot("slot").unwrap();
    assert_eq!(
        net.assign(slot).unwrap_err().to_string(),
        "`assign` expects a fixed number of elements per row, got a slot of variable length"
    );
}

#[test]
fn a_free_parameter_has_a_name_and_first_values() {
    let mut net = Net::with_seed(1);
    let attr = ParamAttr { name: Some("mine".into()), ..ParamAttr::init(Initializer::Constant(2.0)) };
    let mine = net.create_parameter(&[2], &attr).unwrap();
    assert_eq!(net.create_parameter(&[2], &attr).unwrap(), mine, "one name, one parameter");
    net.create_parameter(&[3, 4], &ParamAttr::default()).unwrap();
    net.create_bias(&[3], &ParamAttr::default()).unwrap();
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup).unwrap();
    let get = |name: &str| executor.scope().get(name).unwrap();
    assert_tensor(&get("mine"), &[2], &[2.0, 2.0]);
    // Xavier: uniform within sqrt(6 / (3 + 4)).
    let drawn = get("create_parameter_0.w_0");
    let limit = (6.0f32 / 7.0).sqrt();
    assert!(drawn.f32s().unwrap().iter().all(|v| v.abs() <= limit && *v != 0.0), "{drawn:?}");
    assert_near(get("create_parameter_1.b_0").f32s().unwrap(), &[0.0; 3]);
}

#[test]
fn products_have_the_gradient_of_finite_differences_and_of_zeros() {
    for axes in AXES {
        for keep_dim in [false, true] {
            check(|net, p| net.reduce_prod(p[0], axes, keep_dim), &[&[2, 3, 2, 2]], Options::range(0.8, 1.2));
        }
    }
    let product = |x: &[f32], axes: &[i64]| compute_of(|net, p| net.reduce_prod(p[0], axes, false), &[(&[2, 2], x)]).1;
    assert_eq!(product(&[2.0, 3.0, 4.0, 5.0], &[]), [120.0]);
    assert_eq!(product(&[2.0, 3.0, 4.0, 5.0], &[1]), [6.0, 20.0]);
    // One factor of 0 has the product of the others as its slope; two of them have none.
    let slopes = |x: &[f32]| gradients_at(|net, p| net.reduce_prod(p[0], &[], false), &[(&[3], x)]).remove(0);
    assert_eq!(slopes(&[0.0, 3.0, 4.0]), [12.0, 0.0, 0.0]);
    assert_eq!(slopes(&[0.0, 3.0, 0.0]), [0.0; 3]);
}

#[test]
fn sums_so_far_are_along_an_axis() {
    for axis in [0, 1, -1] {
        check(|net, p| net.cumsum(p[0], axis), &[&[2, 3, 2]], Options::default());
    }
    let x: &[f32] = &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let sums = |axis| compute_of(|net, p| net.cumsum(p[0], axis), &[(&[2, 3], x)]).1;
    assert_eq!(sums(1), [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
    assert_eq!(sums(0), [1.0, 2.0, 3.0, 5.0, 7.0, 9.0]);
    assert_eq!(build_error(|net, v| net.cumsum(v[0], 2), &[&[-1, 3]]), "`cumsum` expects an axis of [-1, 3], got 2");
}

#[test]
fn sorting_keeps_the_order_of_equal_elements_and_puts_nan_last() {
    let x: &[f32] = &[3.0, 1.0, f32::NAN, 1.0, -2.0, 0.0, -0.0, 5.0];
    let sorted = |descending| {
        let build = |net: &mut Net, p: &[Var]| {
            let (values, positions) = net.sort(p[0], descending)?;
            let positions = net.cast(positions, DType::F32)?;
            net.concat(&[values, positions], 1)
        };
        compute_of(build, &[(&[2, 4], x)]).1
    };
    let up = sorted(false);
    assert_eq!(up[..2], [1.0, 1.0]);
    assert!(up[3].is_nan());
    assert_eq!(up[4..8], [1.0, 3.0, 0.0, 2.0]);
    assert_eq!(up[8..], [-2.0, 0.0, 0.0, 5.0, 0.0, 1.0, 2.0, 3.0]);
    let down = sorted(true);
    assert_eq!(down[..3], [3.0, 1.0, 1.0]);
    assert_eq!(down[4..8], [0.0, 1.0, 3.0, 2.0]);
    assert_eq!(down[12..], [3.0, 1.0, 2.0, 0.0]);
    let apart: Vec<f32> = (0..12).map(|i| (i * 7 % 12) as f32 / 5.0).collect();
    check(|net, p| Ok(net.sort(p[0], true)?.0), &[&[3, 4]], Options::values(&[&apart]));
}
