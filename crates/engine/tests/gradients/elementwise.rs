//! Ops that work element by element, on one tensor or on two that meet by broadcasting.

use openfleet_engine::{DType, Feed, Net, Result, Var};

use crate::harness::{Options, check, drawn};

type Binary = fn(&mut Net, Var, Var) -> Result<Var>;

/// Every way in which two tensors can meet.
const MEETINGS: &[(&[usize], &[usize])] = &[
    (&[2, 3], &[2, 3]),
    // A row vector, on either side.
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

fn check_binary(op: Binary, range: (f32, f32)) {
    for &(x, y) in MEETINGS {
        check(|net, p| op(net, p[0], p[1]), &[x, y], Options::range(range.0, range.1));
    }
    // Both inputs are one variable.
    check(|net, p| op(net, p[0], p[0]), &[&[2, 3]], Options::range(range.0, range.1));
    // A batch of any size on one side.
    check(
        |net, p| {
            let x = net.data("x", &[-1, 3], DType::F32)?;
            let row = op(net, x, p[0])?;
            op(net, row, p[1])
        },
        &[&[3], &[1]],
        Options::range(range.0, range.1)
            .fed(move |rows| Feed::new().floats("x", 3, drawn(5, rows * 3, (range.0, range.1))).unwrap()),
    );
}

#[test]
fn arithmetic_of_two_tensors_has_the_gradient_of_finite_differences() {
    check_binary(Net::add, (-1.0, 1.0));
    check_binary(Net::subtract, (-1.0, 1.0));
    check_binary(Net::multiply, (-1.0, 1.0));
}
