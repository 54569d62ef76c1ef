//! Matrix products.

use openfleet_engine::{DType, Feed};

use crate::harness::{Options, build_error, check, compute, compute_of, drawn};

/// Dimensions of x and y as they are multiplied; the test swaps the last two where it says "transposed".
const PRODUCTS: &[(&[usize], &[usize])] = &[
    (&[2, 3], &[3, 4]),
    (&[1, 3], &[3, 1]),
    // One matrix per batch.
    (&[2, 2, 3], &[2, 3, 2]),
    (&[2, 2, 1, 3], &[2, 2, 3, 2]),
    // One y for all.
    (&[2, 2, 3], &[3, 2]),
    (&[2, 2, 2, 3], &[3, 2]),
    // One x for all.
    (&[2, 3], &[2, 3, 2]),
    // Batches of size 1 are broadcast, for both inputs.
    (&[2, 1, 2, 3], &[3, 3, 2]),
    (&[1, 2, 3], &[2, 3, 2]),
];

fn exchanged(dims: &[usize], really: bool) -> Vec<usize> {
    let mut dims = dims.to_vec();
    let rank = dims.len();
    if really {
        dims.swap(rank - 1, rank - 2);
    }
    dims
}

#[test]
fn products_have_the_gradient_of_finite_differences_in_every_orientation() {
    for &(x, y) in PRODUCTS {
        for (transpose_x, transpose_y) in [(false, false), (false, true), (true, false), (true, true)] {
            for alpha in [1.0, -0.5] {
                check(
                    |net, p| net.matmul_with(p[0], p[1], transpose_x, transpose_y, alpha),
                    &[&exchanged(x, transpose_x), &exchanged(y, transpose_y)],
                    Options::default(),
                );
            }
        }
    }
    // A row on the left, a column on the right, and both.
    check(|net, p| net.matmul(p[0], p[1]), &[&[3], &[3, 2]], Options::default());
    check(|net, p| net.matmul(p[0], p[1]), &[&[2, 2, 3], &[3]], Options::default());
    check(|net, p| net.matmul(p[0], p[1]), &[&[3], &[3]], Options::default());
    // A matrix times itself.
    check(|net, p| net.matmul_with(p[0], p[0], false, true, 1.0), &[&[2, 3]], Options::default());
}

#[test]
fn a_batch_times_a_parameter_has_the_gradient_of_finite_differences() {
    let fed = || Options::default().fed(|rows| Feed::new().floats("x", 6, drawn(5, rows * 6, (-1.0, 1.0))).unwrap());
    // [B, 2, 3] x [3, 2], and x transposed, which is one product per row.
    for transpose_x in [false, true] {
        check(
            |net, p| {
                let x = net.data("x", &[-1, 2, 3], DType::F32)?;
                net.matmul_with(x, p[0], transpose_x, false, 1.0)
            },
            &[if transpose_x { &[2, 2] } else { &[3, 2] }],
            fed(),
        );
    }
    // The interactions of a row's vectors: [B, 2, 3] x [B, 3, 2].
    check(
        |net, p| {
            let x = net.data("x", &[-1, 2, 3], DType::F32)?;
            let vectors = net.multiply(x, p[0])?;
            net.matmul_with(vectors, vectors, false, true, 1.0)
        },
        &[&[2, 3]],
        fed(),
    );
    // Every row with every other, and back to one result per row: [B, 6] x [B, 6]ᵀ x [B, 6].
    check(
        |net, p| {
            let x = net.data("x", &[-1, 6], DType::F32)?;
            let vectors = net.multiply(x, p[0])?;
            let pairs = net.matmul_with(vectors, vectors, false, true, 1.0)?;
            net.matmul(pairs, vectors)
        },
        &[&[6]],
        fed(),
    );
}

#[test]
fn a_product_for_each_row_has_the_gradient_of_finite_differences() {
    check(|net, p| net.bmm(p[0], p[1]), &[&[2, 3, 2], &[2, 2, 3]], Options::default());
    check(|net, p| net.bmm(p[0], p[0]), &[&[2, 3, 3]], Options::default());
    check(
        |net, p| {
            let x = net.data("x", &[-1, 2, 3], DType::F32)?;
            let keys = net.multiply(x, p[0])?;
            let query = net.transpose(keys, &[0, 2, 1])?;
            net.bmm(query, keys)
        },
        &[&[3]],
        Options::default().fed(|rows| Feed::new().floats("x", 6, drawn(5, rows * 6, (-1.0, 1.0))).unwrap()),
    );
}

#[test]
fn products_agree_with_a_calculation_by_hand() {
    let x: (&[usize], &[f32]) = (&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let y: (&[usize], &[f32]) = (&[2, 2], &[5.0, 6.0, 7.0, 8.0]);
    let product = |transpose_x, transpose_y, alpha| {
        compute_of(|net, p| net.matmul_with(p[0], p[1], transpose_x, transpose_y, alpha), &[x, y])
    };
    assert_eq!(product(false, false, 1.0), (vec![2, 2], vec![19.0, 22.0, 43.0, 50.0]));
    assert_eq!(product(true, false, 1.0).1, [26.0, 30.0, 38.0, 44.0]);
    assert_eq!(product(false, true, 1.0).1, [17.0, 23.0, 39.0, 53.0]);
    assert_eq!(product(true, true, 2.0).1, [46.0, 62.0, 68.0, 92.0]);
    let vectors = compute_of(|net, p| net.matmul(p[0], p[1]), &[(&[2], &[1.0, 2.0]), (&[2], &[3.0, 4.0])]);
    assert_eq!(vectors, (vec![1], vec![11.0]));
    let three: (&[usize], &[f32]) = (&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    let column = compute_of(|net, p| net.matmul(p[0], p[1]), &[three, (&[2], &[1.0, 10.0])]);
    assert_eq!(column, (vec![2, 1], vec![21.0, 43.0]));
    let batch = compute_of(|net, p| net.bmm(p[0], p[1]), &[three, (&[2, 2, 1], &[1.0, 1.0, 0.0, 2.0])]);
    assert_eq!(batch, (vec![2, 1, 1], vec![3.0, 8.0]));
}

#[test]
fn the_batch_can_be_a_dimension_of_the_matrix_itself() {
    let product = compute(
        |net| {
            let x = net.data("x", &[-1, 2], DType::F32)?;
            net.matmul_with(x, x, false, true, 1.0)
        },
        Feed::new().floats("x", 2, vec![1.0, 2.0, 3.0, 4.0, 0.0, 1.0]).unwrap(),
    )
    .unwrap();
    assert_eq!(product.dims(), [3, 3]);
    assert_eq!(product.f32s().unwrap(), [5.0, 11.0, 2.0, 11.0, 25.0, 4.0, 2.0, 4.0, 1.0]);
}

#[test]
fn mismatched_matrices_are_refused_with_both_shapes() {
    assert_eq!(
        build_error(|net, v| net.matmul(v[0], v[1]), &[&[-1, 3], &[4, 5]]),
        "`matmul` expects x [.., M, K] and y [.., K, N], got [-1, 3] and [4, 5]"
    );
    assert_eq!(
        build_error(|net, v| net.matmul_with(v[0], v[1], false, true, 1.0), &[&[-1, 3], &[3, 5]]),
        "`matmul` expects x [.., M, K] and y transposed [.., K, N], got [-1, 3] and [3, 5]"
    );
    assert_eq!(
        build_error(|net, v| net.matmul(v[0], v[1]), &[&[4, 2, 3], &[2, 3, 2]]),
        "`matmul` expects leading dimensions that are equal or 1, got [4, 2, 3] and [2, 3, 2]"
    );
    // K is not part of the result, so it must be known.
    assert_eq!(
        build_error(|net, v| net.matmul_with(v[0], v[1], true, false, 1.0), &[&[-1, 3], &[4, 5]]),
        "`matmul` expects x transposed [.., M, K] and y [.., K, N], got [-1, 3] and [4, 5]"
    );
    assert_eq!(
        build_error(|net, v| net.bmm(v[0], v[1]), &[&[-1, 2, 3], &[3, 2]]),
        "`bmm` expects x [B, M, K] and y [B, K, N], got [-1, 2, 3] and [3, 2]"
    );
}
