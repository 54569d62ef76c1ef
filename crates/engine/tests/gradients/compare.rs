//! Comparisons, logical ops and `select`.

use openfleet_engine::{DType, Error, Feed, Net, Result, Tensor, Var};

use crate::harness::{Options, build_error, check, compute, compute_of};

type Binary = fn(&mut Net, Var, Var) -> Result<Var>;

const COMPARISONS: [(&str, Binary); 6] = [
    ("less_than", Net::less_than),
    ("less_equal", Net::less_equal),
    ("greater_than", Net::greater_than),
    ("greater_equal", Net::greater_equal),
    ("equal", Net::equal),
    ("not_equal", Net::not_equal),
];

/// The results of each comparison for less, equal and greater.
const ANSWERS: [[f32; 3]; 6] =
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]];

#[test]
fn comparisons_of_floats_and_of_integers_return_booleans() {
    for ((name, op), answers) in COMPARISONS.into_iter().zip(ANSWERS) {
        let floats = compute_of(|net, p| op(net, p[0], p[1]), &[(&[3], &[-1.0, 2.0, 3.5]), (&[1], &[2.0])]);
        assert_eq!(floats.1, answers, "{name} of floats");
        let integers = compute(
            |net| {
                let x = net.data("x", &[-1, 3], DType::I64)?;
                let y = net.data("y", &[-1, 1], DType::I64)?;
                op(net, x, y)
            },
            // A negative integer is less, although its bits are larger; 2^53 + 1 is not representable as a float.
            Feed::new()
                .ints("x", 3, &[-1, 2, 3, 1 << 53, (1 << 53) + 1, (1 << 53) + 2])
                .unwrap()
                .ints("y", 1, &[2, (1 << 53) + 1])
                .unwrap(),
        );
        assert_eq!(integers.unwrap().f32s().unwrap(), [answers, answers].concat(), "{name} of integers");
    }
}

#[test]
fn comparisons_refuse_what_cannot_be_compared() {
    for (name, op) in COMPARISONS {
        assert_eq!(
            build_error(|net, v| op(net, v[0], v[1]), &[&[-1, 3], &[2]]),
            format!("`{name}` expects dimensions that are equal or 1, aligned at the right, got [-1, 3] and [2]")
        );
        let mixed = |net: &mut Net, v: &[Var]| {
            let label = net.data("label", &[-1, 1], DType::I64)?;
            op(net, v[0], label)
        };
        assert_eq!(
            build_error(mixed, &[&[-1, 1]]),
            format!(
                "`{name}` expects floats and floats, or integers and integers, got one of each; `cast` one of them first"
            )
        );
        let ragged = |net: &mut Net, _: &[Var]| {
            let slot = net.slot("slot")?;
            op(net, slot, slot)
        };
        let message = build_error(ragged, &[]);
        assert_eq!(
            message,
            format!("`{name}` expects a fixed number of elements per row, got a slot of variable length")
        );
    }
}

#[test]
fn logical_ops_follow_their_truth_tables() {
    let x: (&[usize], &[f32]) = (&[2, 1], &[0.0, 1.0]);
    let y: (&[usize], &[f32]) = (&[1, 2], &[0.0, 2.0]);
    let of = |op: Binary| compute_of(|net, p| op(net, p[0], p[1]), &[x, y]);
    assert_eq!(of(Net::logical_and), (vec![2, 2], vec![0.0, 0.0, 0.0, 1.0]));
    assert_eq!(of(Net::logical_or), (vec![2, 2], vec![0.0, 1.0, 1.0, 1.0]));
    assert_eq!(compute_of(|net, p| net.logical_not(p[0]), &[y]).1, [1.0, 0.0]);
}

#[test]
fn logical_ops_refuse_integers_and_shapes_that_cannot_be_broadcast() {
    for (name, op) in [("logical_and", Net::logical_and as Binary), ("logical_or", Net::logical_or)] {
        assert_eq!(
            build_error(|net, v| op(net, v[0], v[1]), &[&[-1, 3], &[-1, 2]]),
            format!("`{name}` expects dimensions that are equal or 1, aligned at the right, got [-1, 3] and [-1, 2]")
        );
    }
    let not_of_integers = |net: &mut Net, _: &[Var]| {
        let label = net.data("label", &[-1, 1], DType::I64)?;
        net.logical_not(label)
    };
    assert_eq!(
        build_error(not_of_integers, &[]),
        "`logical_not` expects floats, got integers as input 0; `cast` them first"
    );
}

#[test]
fn no_gradient_flows_through_comparisons_or_logical_ops() {
    for op in COMPARISONS.map(|(_, op)| op).into_iter().chain([Net::logical_and as Binary, Net::logical_or]) {
        let mut net = Net::new();
        let attr = openfleet_engine::ParamAttr::default();
        let p = net.parameter("p", &[2], &attr, openfleet_table::Initializer::Constant(1.0)).unwrap();
        let answer = op(&mut net, p, p).unwrap();
        let not = net.logical_not(answer).unwrap();
        let count = net.cast(not, DType::F32).unwrap();
        let loss = net.mean(count).unwrap();
        assert!(matches!(net.main.append_backward(loss, None, &[]), Err(Error::NothingToTrain { .. })));
    }
}

#[test]
fn select_has_the_gradient_of_finite_differences() {
    // x where x > y is the larger one, if the numbers are far enough apart.
    let larger = |net: &mut Net, x: Var, y: Var| {
        let condition = net.greater_than(x, y)?;
        net.select(condition, x, y)
    };
    let x = [0.5, -0.3, 0.9, -0.8, 0.1, 0.4];
    check(
        |net, p| larger(net, p[0], p[1]),
        &[&[2, 3], &[2, 3]],
        Options::values(&[&x, &[0.2, -0.1, 0.7, -0.5, -0.4, 0.8]]),
    );
    check(|net, p| larger(net, p[0], p[1]), &[&[2, 3], &[1]], Options::values(&[&x, &[0.25]]));
    check(|net, p| larger(net, p[0], p[1]), &[&[3], &[2, 1]], Options::values(&[&x[..3], &[0.25, -0.1]]));
    // A batch decides which of two rows counts.
    check(
        |net, p| {
            let gate = net.data("gate", &[-1, 1], DType::F32)?;
            let zero = net.scale(gate, 0.0, 0.0)?;
            let condition = net.greater_than(gate, zero)?;
            net.where_(condition, p[0], p[1])
        },
        &[&[3], &[1]],
        Options::default().fed(|rows| {
            let gates = (0..rows).map(|row| if row % 2 == 0 { 1.0 } else { -1.0 }).collect();
            Feed::new().floats("gate", 1, gates).unwrap()
        }),
    );
}

#[test]
fn select_takes_from_x_where_the_condition_is_true() {
    let chosen = compute_of(
        |net, p| {
            let condition = net.less_than(p[0], p[1])?;
            net.select(condition, p[2], p[0])
        },
        &[(&[2, 2], &[1.0, 2.0, 3.0, 4.0]), (&[2], &[2.0, 3.0]), (&[1], &[-1.0])],
    );
    assert_eq!(chosen, (vec![2, 2], vec![-1.0, -1.0, 3.0, 4.0]));
    let integers = compute(
        |net| {
            let x = net.data("x", &[-1, 2], DType::I64)?;
            let y = net.data("y", &[-1, 1], DType::I64)?;
            let condition = net.greater_equal(x, y)?;
            net.select(condition, x, y)
        },
        Feed::new().ints("x", 2, &[-4, 9]).unwrap().ints("y", 1, &[5]).unwrap(),
    );
    assert_eq!(integers.unwrap(), Tensor::from_i64(&[1, 2], vec![5, 9]).unwrap());
}

#[test]
fn select_refuses_numbers_as_condition_and_shapes_that_cannot_be_broadcast() {
    assert_eq!(
        build_error(|net, v| net.select(v[0], v[0], v[0]), &[&[-1, 2]]),
        "`where` expects booleans as the condition, got numbers; compare them with something first"
    );
    let apart = |net: &mut Net, v: &[Var]| {
        let condition = net.logical_not(v[0])?;
        net.select(condition, v[0], v[1])
    };
    assert_eq!(
        build_error(apart, &[&[-1, 2], &[-1, 3]]),
        "`where` expects dimensions that are equal or 1, aligned at the right, got [-1, 2] and [-1, 2] and [-1, 3]"
    );
    let mixed = |net: &mut Net, v: &[Var]| {
        let label = net.data("label", &[-1, 2], DType::I64)?;
        let condition = net.logical_not(v[0])?;
        net.select(condition, v[0], label)
    };
    assert_eq!(
        build_error(mixed, &[&[-1, 2]]),
        "`where` expects floats and floats, or integers and integers, got one of each"
    );
}
