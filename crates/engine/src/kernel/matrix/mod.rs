//! Matrix products: our own on processors with AVX2 (`avx2.rs`), else those of the `gemm-f32` crate, which this is the one place to call. (The
//! `gemm` crate in front of it also compiles kernels for doubles and complex numbers, which cost a newcomer's build a minute and are not
//! needed here.)
//!
//! Matrices are row-major slices. On a thread of a pool (`run/batch_threads.rs`) the rows of a large product are divided among the threads of that pool,
//! and every element is the same to the bit; a training thread of a pass over a dataset has no pool, because one training thread per core is
//! faster. Every call checks the lengths, so callers need no `unsafe`.

#[cfg(target_arch = "x86_64")]
mod avx2;

use std::ops::Range;

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

/// Products with fewer columns are computed by `gemm-f32`, on one thread.
const FEWEST_COLUMNS: usize = 8;

/// Multiplications for which a second thread is worth waking up: some 30 microseconds of them.
pub(crate) const FEWEST_TO_DIVIDE: usize = 1 << 20;

/// The rows of a part are a multiple of this and the rest: blocks of both kernels have a multiple of as many rows.
const ROWS_OF_PART: usize = 24;

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
    let product = Product { m, n, k, a, a_orientation, b, b_orientation, keep };
    product.in_parts(0..m, product.parts(), c);
}

/// The factors of a product with their sizes, as [`multiply`] has checked them.
struct Product<'a> {
    m: usize,
    n: usize,
    k: usize,
    a: &'a [f32],
    a_orientation: Orientation,
    b: &'a [f32],
    b_orientation: Orientation,
    keep: f32,
}

impl Product<'_> {
    /// Into how many parts the rows are divided.
    fn parts(&self) -> usize {
        // `gemm-f32` multiplies by a vector in another order for other numbers of rows.
        if self.n < FEWEST_COLUMNS || rayon_core::current_thread_index().is_none() {
            return 1;
        }
        let of_work = self.m.saturating_mul(self.n).saturating_mul(self.k) / FEWEST_TO_DIVIDE + 1;
        rayon_core::current_num_threads().min(of_work).min(self.m / ROWS_OF_PART).max(1)
    }

    /// Computes these rows of `c`, which are all that it has, on as many threads as there are parts.
    fn in_parts(&self, rows: Range<usize>, parts: usize, c: &mut [f32]) {
        if parts == 1 {
            return self.rows(rows, c);
        }
        let left = rows.len() / ROWS_OF_PART * (parts / 2) / parts * ROWS_OF_PART;
        let (top, bottom) = c.split_at_mut(left * self.n);
        let middle = rows.start + left;
        rayon_core::join(
            || self.in_parts(rows.start..middle, parts / 2, top),
            || self.in_parts(middle..rows.end, parts - parts / 2, bottom),
        );
    }

    /// Computes these rows of `c` on the calling thread.
    fn rows(&self, rows: Range<usize>, c: &mut [f32]) {
        // A product with few columns would use a small part of each tile.
        #[cfg(target_arch = "x86_64")]
        if self.n >= FEWEST_COLUMNS && avx2::is_preferred() {
            // SAFETY: the processor has AVX2 and FMA.
            return unsafe { avx2::multiply_rows(self, rows, c) };
        }
        let Product { m, n, k, a, a_orientation, b, b_orientation, keep } = *self;
        let strides = |rows: usize, columns: usize, orientation| match orientation {
            Plain => (1, columns as isize),
            Transposed => (rows as isize, 1),
        };
        let (a_columns, a_rows) = strides(m, k, a_orientation);
        let (b_columns, b_rows) = strides(k, n, b_orientation);
        // The first element of the first of these rows.
        let a = &a[rows.start * a_rows as usize..];
        let m = rows.len();
        assert_eq!(c.len(), m * n, "c has these rows");
        let (c, a, b) = (c.as_mut_ptr(), a.as_ptr(), b.as_ptr());
        // SAFETY: `multiply` has checked that the slices of `a` and `b` have exactly m*k and k*n elements, of which the strides address
        // each once and nothing else; of `a` only the rows in `rows`, which are at most m. `c` has just been checked and is borrowed
        // mutably, so it overlaps neither `a` nor `b`.
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
                    m, n, k, c, 1, 1, read_c, a, a_columns, a_rows, b, b_columns, b_rows, keep, beta, false, false,
                    false, serial,
                );
            }
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

    /// Blocks and tiles with edges, against sums in double precision.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn products_of_every_shape_agree_with_a_sum_in_double_precision() {
        if !avx2::is_supported() {
            return;
        }
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let shapes =
            [(1, 8, 1), (6, 16, 8), (5, 7, 3), (7, 17, 9), (13, 33, 65), (200, 24, 520), (3, 400, 1100), (400, 31, 17)];
        for (m, n, k) in shapes {
            let a: Vec<f32> = (0..m * k).map(|_| next()).collect();
            let b: Vec<f32> = (0..k * n).map(|_| next()).collect();
            let old: Vec<f32> = (0..m * n).map(|_| next()).collect();
            for (a_orientation, b_orientation) in
                [(Plain, Plain), (Plain, Transposed), (Transposed, Plain), (Transposed, Transposed)]
            {
                let at = |i: usize, p: usize| if a_orientation == Plain { a[i * k + p] } else { a[p * m + i] };
                let bt = |p: usize, j: usize| if b_orientation == Plain { b[p * n + j] } else { b[j * k + p] };
                for keep in [0.0, 1.0, 0.5] {
                    let mut c = if keep == 0.0 { vec![f32::NAN; m * n] } else { old.clone() };
                    // SAFETY: the processor has AVX2 and FMA.
                    unsafe {
                        let (a, b) = (&a, &b);
                        let product = Product { m, n, k, a, a_orientation, b, b_orientation, keep };
                        avx2::multiply_rows(&product, 0..m, &mut c);
                    }
                    for (position, &c) in c.iter().enumerate() {
                        let (i, j) = (position / n, position % n);
                        let sum: f64 = (0..k).map(|p| f64::from(at(i, p)) * f64::from(bt(p, j))).sum();
                        let expected = sum + f64::from(keep * old[position]);
                        let error = (f64::from(c) - expected).abs();
                        assert!(
                            error < 1e-6 * (k as f64 + 1.0),
                            "{m} {n} {k} {a_orientation:?} {b_orientation:?}: {error}"
                        );
                    }
                }
            }
        }
    }

    /// What a row of a batch gives does not depend on the rows beside it.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_row_of_a_product_is_the_same_to_the_bit_in_every_batch() {
        if !avx2::is_supported() {
            return;
        }
        let (m, n, k) = (401, 40, 273);
        let a: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
        let b: Vec<f32> = (0..k * n).map(|i| (i as f32 * 0.73).cos()).collect();
        let of_rows = |rows: Range<usize>| {
            let mut c = vec![0.0; rows.len() * n];
            let (m, a) = (rows.len(), &a[rows.start * k..rows.end * k]);
            let product = Product { m, n, k, a, a_orientation: Plain, b: &b, b_orientation: Plain, keep: 0.0 };
            // SAFETY: the processor has AVX2 and FMA.
            unsafe { avx2::multiply_rows(&product, 0..m, &mut c) };
            c
        };
        let all = of_rows(0..m);
        for rows in [0..1, 5..8, 190..200, 398..401] {
            assert_eq!(of_rows(rows.clone()), all[rows.start * n..rows.end * n]);
        }
    }

    /// Layers of click models, convolutions, and sizes that no block divides, on two to five threads.
    #[test]
    fn a_product_on_several_threads_is_the_same_to_the_bit() {
        let shapes = [
            (512, 400, 273),
            (273, 400, 512),
            (512, 273, 400),
            (2000, 64, 27),
            (97, 1031, 530),
            (640, 1, 5000),
            (48, 999, 999),
        ];
        for threads in [2, 3, 5] {
            let pool = rayon_core::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for (m, n, k) in shapes {
                let a: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
                let b: Vec<f32> = (0..k * n).map(|i| (i as f32 * 0.73).cos()).collect();
                for (a_orientation, b_orientation) in
                    [(Plain, Plain), (Plain, Transposed), (Transposed, Plain), (Transposed, Transposed)]
                {
                    for keep in [0.0, 1.0] {
                        let product = |c: &mut [f32]| multiply(m, n, k, &a, a_orientation, &b, b_orientation, keep, c);
                        let (mut alone, mut divided) = (vec![1.0; m * n], vec![1.0; m * n]);
                        product(&mut alone);
                        pool.install(|| product(&mut divided));
                        let same = alone.iter().zip(&divided).all(|(x, y)| x.to_bits() == y.to_bits());
                        assert!(same, "{m} {n} {k} {a_orientation:?} {b_orientation:?} {keep}, {threads} threads");
                    }
                }
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
