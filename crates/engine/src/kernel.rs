//! The plain loops that a training step spends its time in beside the matrix products, each compiled for AVX2 and for the
//! baseline and chosen at run time. No fused multiply-add: every machine gets the same bits.

use multiversion::multiversion;

/// Adds `bias` (N) to every row of `x` (rows x N), and clears what is below zero.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn add_bias_relu(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        for (v, b) in row.iter_mut().zip(bias) {
            *v = (*v + b).max(0.0);
        }
    }
}

/// Adds `bias` (N) to every row of `x` (rows x N).
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn add_bias(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        for (v, b) in row.iter_mut().zip(bias) {
            *v += b;
        }
    }
}

/// `out = gradient` where `y` is above zero, else 0.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn relu_gradient(y: &[f32], gradient: &[f32], out: &mut [f32]) {
    for ((o, &y), &g) in out.iter_mut().zip(y).zip(gradient) {
        *o = if y > 0.0 { g } else { 0.0 };
    }
}

/// Adds every row of `x` (rows x N) to `sums` (N).
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn add_rows(x: &[f32], sums: &mut [f32]) {
    for row in x.chunks_exact(sums.len()) {
        for (s, v) in sums.iter_mut().zip(row) {
            *s += v;
        }
    }
}

/// Adds `x` to `y`.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn add(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

/// The sum of products.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn dot(x: &[f32], y: &[f32]) -> f32 {
    // Eight partial sums: the order is fixed, whatever the machine.
    let mut sums = [0.0f32; 8];
    let (x_chunks, y_chunks) = (x.chunks_exact(8), y.chunks_exact(8));
    let rest: f32 = x_chunks.remainder().iter().zip(y_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in x_chunks.zip(y_chunks) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// The sum of all elements, in double precision.
pub fn sum(x: &[f32]) -> f64 {
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
