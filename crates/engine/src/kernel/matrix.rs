//! Matrix products: the one place that calls the `gemm-f32` crate. (The `gemm` crate in front of it also compiles kernels for doubles and
//! complex numbers, which cost a newcomer's build a minute and are not needed here.)
//!
//! Matrices are row-major slices. Each product runs on the calling thread: one training thread per core is faster than a threaded
//! product. Every call checks the lengths, so callers need no `unsafe`.

use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;

/// Whether a matrix is read as stored or transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Orientation {
    /// As stored.
    Plain,
    /// With rows and columns swapped.
    Transposed,
}

pub use Orientation::{Plain, Transposed};

/// `c = keep * c + a b`, where `a` (after its orientation) is m x k and `b` (after its orientation) is k x n.
///
/// With `keep` 0 the old content of `c` is not read.
pub fn multiply(
    m: usize,
    n: usize,
    k: usize,
    a: &[f32],
    a_orientation: Orientation,
    b: &[f32],
    b_orientation: Orientation,
    keep: f32,
    c: &mut [f32],
) {
    assert_eq!(a.len(), m * k, "a is m x k");
    assert_eq!(b.len(), k * n, "b is k x n");
    assert_eq!(c.len(), m * n, "c is m x n");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        c.iter_mut().for_each(|v| *v *= keep);
        return;
    }
    let strides = |rows: usize, columns: usize, orientation| match orientation {
        Plain => (1, columns as isize),
        Transposed => (rows as isize, 1),
    };
    let (a_columns, a_rows) = strides(m, k, a_orientation);
    let (b_columns, b_rows) = strides(k, n, b_orientation);
    let (c, a, b) = (c.as_mut_ptr(), a.as_ptr(), b.as_ptr());
    // SAFETY: the three pointers come from slices whose lengths were checked above to be exactly m*k, k*n and m*n, the
    // strides address each element of those ranges once and nothing else, and `c` is borrowed mutably, so it overlaps
    // neither `a` nor `b`.
    unsafe {
        let gemm = get_gemm_fn();
        let (read_c, beta, serial) = (keep != 0.0, 1.0, Parallelism::None);
        if n > 1 {
            // The kernels are fastest if the columns of the destination are contiguous, so this computes the transposed product.
            gemm(
                n, m, k, c, n as isize, 1, read_c, b, b_rows, b_columns, a, a_rows, a_columns, keep, beta, false,
                false, false, serial,
            );
        } else {
            gemm(
                m, n, k, c, 1, 1, read_c, a, a_columns, a_rows, b, b_columns, b_rows, keep, beta, false, false, false,
                serial,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(
        m: usize,
        n: usize,
        k: usize,
        a: impl Fn(usize, usize) -> f32,
        b: impl Fn(usize, usize) -> f32,
    ) -> Vec<f32> {
        let mut c = vec![0.0; m * n];
        for i in 0..m {
            for j in 0..n {
                c[i * n + j] = (0..k).map(|p| a(i, p) * b(p, j)).sum();
            }
        }
        c
    }

    #[test]
    fn every_orientation_agrees_with_a_naive_product() {
        let (m, n, k) = (5, 7, 3);
        let a: Vec<f32> = (0..m * k).map(|i| i as f32 * 0.5 - 3.0).collect();
        let b: Vec<f32> = (0..k * n).map(|i| (i as f32 * 0.7).sin()).collect();
        for a_orientation in [Plain, Transposed] {
            for b_orientation in [Plain, Transposed] {
                let at = |i, p| if a_orientation == Plain { a[i * k + p] } else { a[p * m + i] };
                let bt = |p, j| if b_orientation == Plain { b[p * n + j] } else { b[j * k + p] };
                let expected = naive(m, n, k, at, bt);
                let mut c = vec![f32::NAN; m * n];
                multiply(m, n, k, &a, a_orientation, &b, b_orientation, 0.0, &mut c);
                assert!(
                    c.iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-5),
                    "{a_orientation:?} {b_orientation:?}"
                );
                multiply(m, n, k, &a, a_orientation, &b, b_orientation, 1.0, &mut c);
                assert!(c.iter().zip(&expected).all(|(x, y)| (x - 2.0 * y).abs() < 1e-5), "adds to what is there");
            }
        }
    }

    #[test]
    fn an_empty_inner_dimension_leaves_zeros() {
        let mut c = [3.0; 4];
        multiply(2, 2, 0, &[], Plain, &[], Plain, 0.0, &mut c);
        assert_eq!(c, [0.0; 4]);
    }
}
