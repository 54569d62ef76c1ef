//! Ops without inputs, the sizes of dimensions, and the greatest elements of a row.

use openfleet_engine::op::LiteralValues;
use openfleet_engine::{DType, Feed, Net, Tensor, Var};
use openfleet_table::Initializer;

use crate::constants::assert_tensor;
use crate::harness::{Options, build_error, check, compute, compute_of, drawn, gradients_at};

fn rows(count: usize) -> Feed {
    Feed::new().floats("x", 1, vec![0.0; count]).unwrap()
}

#[test]
fn a_literal_has_the_given_numbers() {
    let floats = compute(|net| net.literal(&[2, 2], LiteralValues::F32(vec![1.0, -2.0, 0.5, 4.0])), rows(3)).unwrap();
    assert_tensor(&floats, &[2, 2], &[1.0, -2.0, 0.5, 4.0]);
    let ints = compute(|net| net.literal(&[3], LiteralValues::I64(vec![-1, 0, 1 << 40])), rows(3)).unwrap();
    assert_eq!(ints, Tensor::from_i64(&[3], vec![-1, 0, 1 << 40]).unwrap());
    // As a condition: x on and below the diagonal.
    let (dims, values) = compute_of(
        |net, p| {
            let below = net.literal(&[2, 2], LiteralValues::Bool(vec![true, false, true, true]))?;
            let zeros = net.fill_like(p[0], 0.0)?;
            net.select(below, p[0], zeros)
        },
        &[(&[2, 2], &[1.0, 2.0, 3.0, 4.0])],
    );
    assert_eq!((dims, values), (vec![2, 2], vec![1.0, 0.0, 3.0, 4.0]));
    assert_eq!(
        build_error(|net, _| net.literal(&[2, 3], LiteralValues::F32(vec![1.0])), &[]),
        "`literal` expects 6 numbers for [2, 3], got 1"
    );
}

#[test]
fn random_numbers_fill_the_batch_and_are_the_same_in_a_repeated_run() {
    let draw = |from: Initializer, seed| compute(|net| net.random(&[-1, 500], from, seed), rows(4)).unwrap();
    let uniform = Initializer::Uniform { low: 2.0, high: 4.0 };
    let once = draw(uniform, None);
    assert_eq!(once.dims(), [4, 500]);
    let values = once.f32s().unwrap();
    assert!(values.iter().all(|v| (2.0..4.0).contains(v)));
    let mean = values.iter().sum::<f32>() / 2000.0;
    assert!((mean - 3.0).abs() < 0.05, "mean {mean}");
    assert_eq!(once, draw(uniform, None));
    assert_ne!(once, draw(uniform, Some(5)));
    let message = build_error(|net, _| net.random(&[2], Initializer::Constant(1.0), None), &[]);
    assert!(message.starts_with("`random` expects a distribution"), "{message}");
}

#[test]
fn sizes_are_those_of_this_step() {
    let build = |net: &mut Net| {
        let x = net.data("x", &[-1, 2, 3], DType::F32)?;
        let flat = net.reshape(x, &[-1, 3])?;
        net.sizes(flat)
    };
    let sizes = compute(build, Feed::new().floats("x", 6, vec![0.0; 24]).unwrap()).unwrap();
    assert_eq!(sizes, Tensor::from_i64(&[2], vec![8, 3]).unwrap());
}

#[test]
fn topk_is_sorted_and_the_first_of_equal_elements_wins() {
    let x: (&[usize], &[f32]) = (&[2, 4], &[1.0, 3.0, 3.0, 2.0, f32::NAN, -1.0, 0.5, f32::NEG_INFINITY]);
    let values = |k, largest| compute_of(|net, p| Ok(net.topk(p[0], k, largest)?.0), &[x]);
    assert_eq!(values(2, true), (vec![2, 2], vec![3.0, 3.0, 0.5, -1.0]));
    assert_eq!(values(3, false).1, [1.0, 2.0, 3.0, f32::NEG_INFINITY, -1.0, 0.5]);
    let places = |k, largest| {
        let build = |net: &mut Net| {
            let x = net.data("x", &[-1, 4], DType::F32)?;
            Ok(net.topk(x, k, largest)?.1)
        };
        compute(build, Feed::new().floats("x", 4, x.1.to_vec()).unwrap()).unwrap()
    };
    assert_eq!(places(2, true), Tensor::from_i64(&[2, 2], vec![1, 2, 2, 1]).unwrap());
    assert_eq!(places(4, false), Tensor::from_i64(&[2, 4], vec![0, 3, 1, 2, 3, 1, 2, 0]).unwrap());
}

#[test]
fn topk_has_the_gradient_of_finite_differences() {
    // Numbers far enough apart that a finite difference changes no order.
    let apart: Vec<f32> = (0..12).map(|i| (i * 7 % 12) as f32 / 10.0).collect();
    for (k, largest) in [(1, true), (3, true), (2, false), (4, false)] {
        check(|net, p| Ok(net.topk(p[0], k, largest)?.0), &[&[3, 4]], Options::values(&[&apart]));
    }
    check(
        |net, p: &[Var]| {
            let x = net.data("x", &[-1, 3], DType::F32)?;
            let x = net.multiply(x, p[0])?;
            Ok(net.topk(x, 2, true)?.0)
        },
        &[&[3]],
        Options::values(&[&[1.0, 2.0, 3.0]])
            .fed(|rows| Feed::new().floats("x", 3, drawn(5, rows * 3, (1.0, 1.1))).unwrap()),
    );
    // Elements that were not selected get no gradient.
    let gradients = gradients_at(|net, p| Ok(net.topk(p[0], 2, true)?.0), &[(&[1, 4], &[1.0, 3.0, 3.0, 3.0])]);
    assert_eq!(gradients, [[0.0, 1.0, 1.0, 0.0]]);
}

#[test]
fn topk_refuses_a_k_above_the_row_length() {
    assert_eq!(
        build_error(|net, v| net.topk(v[0], 4, true), &[&[-1, 3]]),
        "`topk` expects a fixed last dimension of at least k = 4 elements, k from 1, got [-1, 3]"
    );
}
