//! The ops of every model: dense layers, activations, concat, the mean and the click loss.

use openfleet_engine::op::{Activation, Fc};
use openfleet_engine::{DType, Feed, Net, Tensor, Var};

use crate::harness::{Options, build_error, check, compute};

#[test]
fn a_dense_layer_passes_gradients_to_its_input_weights_and_bias() {
    for activation in [Activation::Linear, Activation::Relu, Activation::Sigmoid, Activation::Tanh] {
        for bias in [true, false] {
            let op = Fc { activation, bias, row_axes: 1 };
            let dims: &[&[usize]] = if bias { &[&[3, 2], &[2, 4], &[4]] } else { &[&[3, 2], &[2, 4]] };
            // No sum of products comes near 0, where ReLU has a kink.
            let x = [1.0, 0.5, 0.7, 0.9, 0.4, 1.1];
            let w = [1.0, -0.8, 0.6, -1.2, 0.5, -0.9, 0.7, -0.4];
            let values: &[&[f32]] = if bias { &[&x, &w, &[0.2, -0.1, 0.3, -0.2]] } else { &[&x, &w] };
            check(|net, p| net.append_one("fc", op.clone(), p), dims, Options::values(values));
        }
    }
    assert_eq!(
        build_error(|net, v| net.fc(v[0], 4, Activation::Linear), &[&[-1]]),
        "`fc` expects more than 1 dimension(s), got [-1]"
    );
}

#[test]
fn a_dense_layer_flattens_what_follows_its_rows() {
    let op = Fc { activation: Activation::Linear, bias: false, row_axes: 1 };
    check(|net, p| net.append_one("fc", op.clone(), p), &[&[2, 2, 2], &[4, 3]], Options::default());
}

#[test]
fn relu_and_sigmoid_have_their_values_and_gradients() {
    check(|net, p| net.relu(p[0]), &[&[2, 2]], Options::values(&[&[1.0, -1.0, 0.5, -0.3]]));
    check(|net, p| net.sigmoid(p[0]), &[&[2, 3]], Options::range(-3.0, 3.0));
    let feed = || Feed::new().floats("x", 2, vec![-2.0, 3.0]).unwrap();
    let relu = compute(
        |net| {
            let x = net.data("x", &[-1, 2], DType::F32)?;
            net.relu(x)
        },
        feed(),
    );
    assert_eq!(relu.unwrap().f32s().unwrap(), [0.0, 3.0]);
    let sigmoid = compute(
        |net| {
            let x = net.data("x", &[-1, 2], DType::F32)?;
            net.sigmoid(x)
        },
        feed(),
    );
    // 1 / (1 + e^2) and 1 / (1 + e^-3).
    let expected = [0.119_202_92, 0.952_574_1];
    assert!(sigmoid.unwrap().f32s().unwrap().iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6));
}

#[test]
fn concat_passes_each_part_its_own_gradient() {
    for axis in [0, 1, -1] {
        check(|net, p| net.concat(&[p[0], p[1], p[0]], axis), &[&[2, 3], &[2, 3]], Options::default());
    }
    check(|net, p| net.concat(&[p[0], p[1]], 1), &[&[2, 1, 2], &[2, 3, 2]], Options::default());
    assert_eq!(
        build_error(|net, v| net.concat(&[v[0], v[1]], 1), &[&[-1, 3], &[-1, 3, 1]]),
        "`concat` expects equal dimensions but for axis 1, got [-1, 3] and [-1, 3, 1]"
    );
    // Integers too, but not mixed with floats.
    let ids = Feed::new().ints("a", 1, &[1, -2]).unwrap().ints("b", 2, &[3, 4, 5, 6]).unwrap();
    let joined = compute(
        |net| {
            let (a, b) = (net.data("a", &[-1, 1], DType::I64)?, net.data("b", &[-1, 2], DType::I64)?);
            net.concat(&[a, b], 1)
        },
        ids,
    );
    assert_eq!(joined.unwrap(), Tensor::from_i64(&[2, 3], vec![1, 3, 4, -2, 5, 6]).unwrap());
    let mixed = |net: &mut Net, v: &[Var]| {
        let ids = net.data("ids", &[-1, 3], DType::I64)?;
        net.concat(&[v[0], ids], 1)
    };
    assert_eq!(
        build_error(mixed, &[&[-1, 3]]),
        "`concat` expects only floats or only integers, got some of each; `cast` some of them first"
    );
}

#[test]
fn the_mean_shares_its_gradient_equally() {
    check(|net, p| net.mean(p[0]), &[&[3, 4]], Options::default());
}

#[test]
fn the_click_loss_has_the_gradient_of_its_formula() {
    check(
        |net, p| {
            let labels = net.fill_constant(&[2, 3], 0.3_f32)?;
            net.sigmoid_cross_entropy_with_logits(p[0], labels)
        },
        &[&[2, 3]],
        Options::range(-4.0, 4.0),
    );
    assert_eq!(
        build_error(|net, v| net.sigmoid_cross_entropy_with_logits(v[0], v[1]), &[&[-1, 1], &[-1, 2]]),
        "`sigmoid_cross_entropy_with_logits` expects logits and labels of one shape, got [-1, 1] and [-1, 2]"
    );
}
