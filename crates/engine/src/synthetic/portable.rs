//! Exponential and logarithm that return the same bits on every machine.
//!
//! The standard library leaves these to the platform, and platforms differ in the last bits. One flipped bit could flip a label,
//! and two machines would train on different data. Only operations that IEEE 754 defines to the bit are used: the four arithmetic
//! operations and comparisons. The results are exact to about 1e-14, which is enough to generate data.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// e to the power of `x`, for `x` from -700 to 700; values outside are clamped to that range.
pub(super) fn exp(x: f64) -> f64 {
    // x = k ln 2 + r with |r| at most ln 2 / 2. The high part of ln 2 has few enough bits that k times it is exact.
    const LN_2_HIGH: f64 = 0.693_147_182_464_599_6;
    const LN_2_LOW: f64 = -1.904_654_299_957_768e-9;
    let x = x.clamp(-700.0, 700.0);
    let k = (x * LOG2_E).round();
    let r = (x - k * LN_2_HIGH) - k * LN_2_LOW;
    // Taylor series up to the 12th power.
    let mut sum = 1.0;
    for n in (1..=12).rev() {
        sum = 1.0 + sum * r * INVERSE[n];
    }
    sum * f64::from_bits(((1023 + k as i64) as u64) << 52)
}

/// The natural logarithm of a positive, normal `x`.
pub(super) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), with the fraction at most 0.172.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for n in (1..=17).rev().step_by(2) {
        sum = INVERSE[n] + sum * square;
    }
    exponent as f64 * LN_2 + 2.0 * s * sum
}

/// 1 / (1 + e^-x).
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + exp(-x))
}

/// A smooth wave of period 1 and height 1 that rises at 0: two parabolas instead of a sine.
pub(super) fn wave(x: f64) -> f64 {
    let phase = x - x.floor();
    if phase < 0.5 { 16.0 * phase * (0.5 - phase) } else { -16.0 * (phase - 0.5) * (1.0 - phase) }
}

/// 1 / n, so that no loop divides.
const INVERSE: [f64; 18] = {
    let mut inverse = [0.0; 18];
    let mut n = 1;
    while n < 18 {
        inverse[n] = 1.0 / n as f64;
        n += 1;
    }
    inverse
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_and_ln_agree_with_the_standard_library() {
        for step in -7000..7000 {
            let x = f64::from(step) * 0.1;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-13, "exp({x})");
            let y = x.exp();
            assert!((ln(y) - y.ln()).abs() < 1e-13 * y.ln().abs().max(1.0), "ln({y})");
        }
        assert_eq!((exp(0.0), ln(1.0)), (1.0, 0.0));
    }

    #[test]
    fn sigmoid_is_a_half_at_zero_and_saturates() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert!(sigmoid(-1e9) >= 0.0 && sigmoid(1e9) <= 1.0);
    }

    #[test]
    fn a_wave_rises_falls_and_repeats() {
        assert_eq!((wave(0.0), wave(0.25), wave(0.5), wave(0.75)), (0.0, 1.0, 0.0, -1.0));
        assert_eq!(wave(3.25), wave(-0.75));
    }
}
