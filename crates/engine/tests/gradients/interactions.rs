//! Products of features: factorization machine and cross layer.

use std::sync::Arc;

use openfleet_engine::{DType, Executor, Feed, Net, ParamAttr, Scope};

use crate::constants::assert_near;
use crate::harness::{Options, build_error, check, compute_of, drawn};

#[test]
fn fm_adds_up_the_products_of_all_pairs() {
    // (1, 2)(-1, 0.5) + (1, 2)(3, 4) + (-1, 0.5)(3, 4) = 0 + 11 - 1; the second row has a single field that is not 0.
    let x: &[f32] = &[1.0, 2.0, -1.0, 0.5, 3.0, 4.0, 0.0, 0.0, 5.0, 7.0, 0.0, 0.0];
    let (dims, y) = compute_of(|net, p| net.fm(p[0]), &[(&[2, 3, 2], x)]);
    assert_eq!(dims, [2, 1]);
    assert_near(&y, &[10.0, 0.0]);
    let (dims, flat) = compute_of(|net, p| net.fm_of(p[0], 3), &[(&[2, 6], x)]);
    assert_eq!((dims, flat), (vec![2, 1], y));
}

#[test]
fn fm_has_the_gradient_of_finite_differences() {
    check(|net, p| net.fm(p[0]), &[&[2, 3, 2]], Options::default());
    // Longer than the eight lanes of a product, with a remainder.
    check(|net, p| net.fm_of(p[0], 2), &[&[2, 22]], Options::default());
    check(
        |net, p| {
            let x = net.data("x", &[-1, 3, 4], DType::F32)?;
            let shifted = net.multiply(x, p[0])?;
            net.fm(shifted)
        },
        &[&[3, 4]],
        Options::default().fed(|rows| Feed::new().floats("x", 12, drawn(4, 12 * rows, (-1.0, 1.0))).unwrap()),
    );
}

#[test]
fn fm_refuses_unsupported_shapes() {
    assert_eq!(
        build_error(|net, v| net.fm(v[0]), &[&[-1, 6]]),
        "`fm` expects [B, F, D]; `fm_of` takes [B, F * D], got [-1, 6]"
    );
    assert_eq!(
        build_error(|net, v| net.fm_of(v[0], 4), &[&[-1, 6]]),
        "`fm` expects [B, 4, D] or [B, 4 * D], got [-1, 6]"
    );
    assert_eq!(
        build_error(|net, v| net.fm_of(v[0], 0), &[&[-1, 6]]),
        "`fm` expects [B, 0, D] or [B, 0 * D], got [-1, 6]"
    );
}

#[test]
fn cross_is_the_formula_of_the_paper() {
    let (dims, y) = compute_of(
        |net, p| net.cross_with(p[0], p[1], &ParamAttr::named("p_2"), &ParamAttr::named("p_3")),
        &[
            (&[1, 3], &[1.0, 2.0, 3.0]),
            (&[1, 3], &[0.5, -1.0, 2.0]),
            (&[3], &[0.1, 0.2, 0.3]),
            (&[3], &[0.01, 0.02, 0.03]),
        ],
    );
    assert_eq!(dims, [1, 3]);
    assert_near(&y, &[0.96, -0.08, 3.38]);
}

#[test]
fn cross_has_the_gradient_of_finite_differences() {
    let weight = ParamAttr::named("p_2");
    let bias = ParamAttr::named("p_3");
    check(|net, p| net.cross_with(p[0], p[1], &weight, &bias), &[&[3, 9], &[3, 9], &[9], &[9]], Options::default());
    // The first layer: both inputs are one variable; then a second layer on top.
    let (weight, bias) = (ParamAttr::named("p_1"), ParamAttr::named("p_2"));
    check(
        |net, p| {
            let first = net.cross_with(p[0], p[0], &weight, &bias)?;
            net.cross_with(p[0], first, &weight, &bias)
        },
        &[&[2, 3], &[3], &[3]],
        Options::default(),
    );
}

#[test]
fn cross_creates_its_parameters_and_checks_its_inputs() {
    let mut net = Net::with_seed(1);
    let x = net.data("x", &[-1, 3], DType::F32).unwrap();
    net.cross(x, x).unwrap();
    let mut executor = Executor::new(Arc::new(Scope::new()));
    executor.run_startup(&net.startup).unwrap();
    assert_eq!(executor.scope().names(), ["cross_0.b_0", "cross_0.w_0"]);
    assert_eq!(
        build_error(|net, v| net.cross(v[0], v[1]), &[&[-1, 3], &[-1, 4]]),
        "`cross` expects x0 [B, N], x [B, N], w [N] and b [N], got [-1, 3] and [-1, 4] and [3] and [3]"
    );
    assert_eq!(
        build_error(|net, v| net.cross(v[0], v[0]), &[&[-1, 3, 2]]),
        "`cross` expects x0 and x [B, N], got [-1, 3, 2]"
    );
}
