//! The loops, besides matrix products, where a training step spends its time. Each is compiled for AVX2 and for the baseline, and
//! chosen at run time. They use no fused multiply-add, so every machine computes the same bits.

pub mod matrix;
pub(crate) mod transcendental;

use multiversion::multiversion;
use openfleet_core::key::mix;

/// Sets values below zero to zero. Unlike `max`, the comparison lets NaN through: hiding it would hide why training fails.
#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// Adds `bias` (N) to every row of `x` (rows x N), then sets values below zero to zero.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn add_bias_relu(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        for (v, b) in row.iter_mut().zip(bias) {
            *v = relu(*v + b);
        }
    }
}

/// Adds `bias` (N) to every row of `x` (rows x N).
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn add_bias(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        for (v, b) in row.iter_mut().zip(bias) {
            *v += b;
        }
    }
}

/// `out = gradient` where `y` is above zero, else 0.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn relu_gradient(y: &[f32], gradient: &[f32], out: &mut [f32]) {
    for ((o, &y), &g) in out.iter_mut().zip(y).zip(gradient) {
        *o = if y > 0.0 { g } else { 0.0 };
    }
}

/// Adds every row of `x` (rows x N) to `sums` (N).
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn add_rows(x: &[f32], sums: &mut [f32]) {
    for row in x.chunks_exact(sums.len()) {
        for (s, v) in sums.iter_mut().zip(row) {
            *s += v;
        }
    }
}

/// Adds `x` to `y`.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn add(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

/// The sum of products.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn dot(x: &[f32], y: &[f32]) -> f32 {
    inner_product(x, y)
}

/// Partial sums of a sum of floats: they fix the order of additions on every machine, and keep vector units busy.
pub(crate) const LANES: usize = 16;

/// [`dot`] for other kernels: compiled for their target instead of dispatched at every call.
#[inline(always)]
pub(crate) fn inner_product(x: &[f32], y: &[f32]) -> f32 {
    let ((x_chunks, x_rest), (y_chunks, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let mut sums = [0.0f32; LANES];
    for (a, b) in x_chunks.iter().zip(y_chunks) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = x_rest.iter().zip(y_rest).map(|(a, b)| a * b).sum();
    // One after the other: with sums of halves the compiler keeps them in pairs, and the loop above takes twice as long.
    sums.iter().sum::<f32>() + rest
}

/// The sum of all elements, in double precision.
pub(crate) fn sum(x: &[f32]) -> f64 {
    let mut sums = [0.0f64; 8];
    let chunks = x.chunks_exact(8);
    let rest: f64 = chunks.remainder().iter().map(|&v| f64::from(v)).sum();
    for chunk in chunks {
        for i in 0..8 {
            sums[i] += f64::from(chunk[i]);
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// Overwrites for the first writer of a gradient and adds for the others; see
/// [`Gradient::begin`](crate::memory::Gradient::begin). If `keep` is 0 the old value is ignored, even if it is NaN.
#[inline(always)]
pub(crate) fn put(to: &mut f32, value: f32, keep: f32) {
    *to = if keep == 0.0 { value } else { *to + value };
}

/// The second-order term of a factorization machine for one row. Fills `sums` (D) with the sum of the fields of `x` (F x D) and
/// returns `0.5 * sum_d (sums^2 - sum_f x^2)`.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn fm_row(x: &[f32], sums: &mut [f32]) -> f32 {
    let d = sums.len();
    sums.fill(0.0);
    for field in x.chunks_exact(d) {
        for (s, v) in sums.iter_mut().zip(field) {
            *s += v;
        }
    }
    0.5 * (inner_product(sums, sums) - inner_product(x, x))
}

/// The gradient of [`fm_row`]: `factor * (sums - x)` per field, written or added according to `keep`.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn fm_row_gradient(x: &[f32], sums: &[f32], factor: f32, keep: f32, out: &mut [f32]) {
    let d = sums.len();
    for (field, out) in x.chunks_exact(d).zip(out.chunks_exact_mut(d)) {
        for ((o, &v), &s) in out.iter_mut().zip(field).zip(sums) {
            put(o, factor * (s - v), keep);
        }
    }
}

/// `y = a * x + y`.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn add_scaled(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// `y = x * mask`.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn product(x: &[f32], mask: &[f32], y: &mut [f32]) {
    for ((y, &x), &m) in y.iter_mut().zip(x).zip(mask) {
        *y = x * m;
    }
}

/// Fills `mask` with 0 with probability `dropped / 2^32`, else with `kept`. Element i depends only on `seed` and i: there is no
/// generator state, and a step can be repeated.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn random_mask(seed: u64, dropped: u64, kept: f32, mask: &mut [f32]) {
    for (i, pair) in mask.chunks_mut(2).enumerate() {
        // The odd constant keeps the counters of neighbouring seeds apart.
        let bits = mix(seed.wrapping_add((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        for (m, bits) in pair.iter_mut().zip([bits >> 32, bits & 0xffff_ffff]) {
            *m = if bits < dropped { 0.0 } else { kept };
        }
    }
}
