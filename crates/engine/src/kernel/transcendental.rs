//! exp, softplus, sigmoid and tanh without branches and without calls, so that loops over them are vectorized.
//!
//! Each is a range reduction and a polynomial whose coefficients minimize the largest relative error (least squares on 4,000
//! Chebyshev nodes, weighted again until the errors are level). There is no fused multiply-add, so every machine computes the
//! same bits. Errors in units in the last place are below 1 for exp, 2 for tanh, 3 for softplus and sigmoid; a test compares with
//! double precision.

use multiversion::multiversion;

use super::LANES;

/// Adding it to a float below 2^22 in magnitude rounds to the nearest integer, which is then in the lower bits.
const ROUND: f32 = 1.5 * (1u32 << 23) as f32;

/// e to the power of `x`. NaN stays NaN; above 88.7 the result is infinite, and below -87.3 it is 0.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts: the first has zeros at its end, so that its product with an integer up to 150 is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // The comparisons are false for NaN, which passes.
    let is_small = x < -87.336_54;
    let bounded = if x > 89.0 { 89.0 } else { x };
    let bounded = if is_small { 0.0 } else { bounded };
    let shifted = bounded * LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let r = (bounded - whole * LN2_HIGH) - whole * LN2_LOW;
    let polynomial =
        ((((1.381_461_3e-3 * r + 8.368_71e-3) * r + 4.166_839e-2) * r + 0.166_665_21) * r + 0.499_999_94) * r * r;
    let fraction = polynomial + r + 1.0;
    // 2^whole in two factors, because 2^128 is not a float.
    let exponent = shifted.to_bits() as i32 - ROUND.to_bits() as i32;
    let half = exponent >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    let result = fraction * power(half) * power(exponent - half);
    if is_small { 0.0 } else { result }
}

/// `ln(1 + e)` for `e` from 0 to 1, as 2 atanh(e / (2 + e)).
#[inline(always)]
fn ln_1p_to_one(e: f32) -> f32 {
    let s = e / (2.0 + e);
    let z = s * s;
    let polynomial = ((0.280_244_62 * z + 0.279_991_42) * z + 0.400_217) * z + 0.666_664_1;
    s * z * polynomial + 2.0 * s
}

/// `1 / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let z = x * x;
    let polynomial =
        (((-5.717_042_4e-3 * z + 2.065_058_4e-2) * z - 5.374_349_7e-2) * z + 0.133_314_91) * z - 0.333_332_84;
    let near_zero = x * z * polynomial + x;
    let e = exp(-2.0 * x.abs());
    let large = ((1.0 - e) / (1.0 + e)).copysign(x);
    if x.abs() < 0.625 { near_zero.copysign(x) } else { large }
}

macro_rules! each {
    ($(#[$doc:meta])* $name:ident, $function:ident) => {
        $(#[$doc])*
        #[multiversion(targets("x86_64+avx2+fma"))]
        pub(crate) fn $name(values: &mut [f32]) {
            values.iter_mut().for_each(|value| *value = $function(*value));
        }
    };
}

each!(
    /// [`exp`] of each value, in place.
    exp_each, exp
);
each!(
    /// [`sigmoid`] of each value, in place.
    sigmoid_each, sigmoid
);
each!(
    /// [`tanh`] of each value, in place.
    tanh_each, tanh
);

/// Replaces each logit of `x` by its [`sigmoid`], and returns the sum of their softplus, `ln(1 + exp(x))`.
/// Both need `exp(-|x|)`, which does not overflow.
#[inline(always)]
pub(crate) fn sigmoid_and_softplus(x: &mut [f32]) -> f32 {
    // Partial sums fix the order of additions on every machine.
    let mut sums = [0.0f32; LANES];
    let (chunks, rest) = x.as_chunks_mut();
    chunks.iter_mut().for_each(|chunk| chunk_of_sigmoids(chunk, &mut sums));
    // Too small for a softplus above 0.
    let mut padded = [-200.0; LANES];
    padded[..rest.len()].copy_from_slice(rest);
    chunk_of_sigmoids(&mut padded, &mut sums);
    rest.copy_from_slice(&padded[..rest.len()]);
    sums.iter().sum()
}

#[inline(always)]
fn chunk_of_sigmoids(x: &mut [f32; LANES], sums: &mut [f32; LANES]) {
    for (x, sum) in x.iter_mut().zip(sums) {
        let e = exp(-x.abs());
        *sum += super::relu(*x) + ln_1p_to_one(e);
        let inverse = 1.0 / (1.0 + e);
        *x = if *x >= 0.0 { inverse } else { e * inverse };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units in the last place between a float and the exact value.
    fn ulps(got: f32, exact: f64) -> f64 {
        let unit =
            f64::from(f32::from_bits((exact.abs() as f32).to_bits().max(0x0080_0000) & 0x7f80_0000)) * 2f64.powi(-23);
        (f64::from(got) - exact).abs() / unit
    }

    /// Every 997th float from `low` to `high` in magnitude, of both signs.
    fn floats(low: f32, high: f32) -> impl Iterator<Item = f32> {
        (low.to_bits()..high.to_bits()).step_by(997).flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)])
    }

    fn softplus(x: f32) -> f32 {
        sigmoid_and_softplus(&mut [x])
    }

    #[test]
    fn errors_are_below_one_to_three_units_in_the_last_place() {
        let mut worst = [(0.0, 0.0); 4];
        for x in floats(1e-10, 87.3) {
            let wide = f64::from(x);
            let errors = [
                ulps(exp(x), wide.exp()),
                ulps(tanh(x), wide.tanh()),
                ulps(softplus(x), wide.max(0.0) + (-wide.abs()).exp().ln_1p()),
                ulps(sigmoid(x), 1.0 / (1.0 + (-wide).exp())),
            ];
            for (worst, error) in worst.iter_mut().zip(errors) {
                *worst = if error > worst.0 { (error, x) } else { *worst };
            }
        }
        let bounds = [("exp", 1.0), ("tanh", 2.0), ("softplus", 3.0), ("sigmoid", 3.0)];
        for ((name, bound), (error, x)) in bounds.into_iter().zip(worst) {
            assert!(error < bound, "{name}({x}) is wrong by {error} units: expected less than {bound}");
        }
    }

    #[test]
    fn limits_signs_and_not_a_number() {
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(f32::INFINITY)), (1.0, 0.0, f32::INFINITY));
        assert_eq!((exp(-1000.0), exp(1000.0)), (0.0, f32::INFINITY));
        assert!(exp(88.7).is_finite() && exp(88.8).is_infinite());
        assert_eq!((sigmoid(-200.0), sigmoid(0.0), sigmoid(200.0)), (0.0, 0.5, 1.0));
        assert_eq!((tanh(-100.0), tanh(100.0), tanh(0.0)), (-1.0, 1.0, 0.0));
        assert!(tanh(-0.0).is_sign_negative());
        assert_eq!((softplus(-200.0), softplus(200.0)), (0.0, 200.0));
        for function in [exp, sigmoid, tanh, softplus] {
            assert!(function(f32::NAN).is_nan());
        }
    }

    #[test]
    fn loops_compute_what_single_calls_compute() {
        let x: Vec<f32> = (-40..41).map(|at| at as f32 * 0.37).collect();
        type Pair = (fn(&mut [f32]), fn(f32) -> f32);
        let pairs: [Pair; 3] = [(exp_each, exp), (sigmoid_each, sigmoid), (tanh_each, tanh)];
        for (each, one) in pairs {
            let mut values = x.clone();
            each(&mut values);
            assert!(values.iter().zip(&x).all(|(value, &x)| value.to_bits() == one(x).to_bits()));
        }
        let mut sigmoids = x.clone();
        let sum = sigmoid_and_softplus(&mut sigmoids);
        let exact: f64 = x.iter().map(|&x| f64::from(x).exp().ln_1p()).sum();
        assert!((f64::from(sum) - exact).abs() < 1e-6 * exact, "{sum} for {exact}");
        assert!(sigmoids.iter().zip(&x).all(|(&y, &x)| (y - sigmoid(x)).abs() <= 4e-7 * y));
    }
}
