//! Gradient clipping before a push.
//!
//! Clipping by value and by norm looks at one gradient. The global norm looks at all gradients of a step together, so it has
//! two phases: add up [`sum_of_squares`] of every gradient, then scale each by [`global_scale`]. Where the gradients are, and
//! whether they are all on one worker, is up to the caller.

use multiversion::multiversion;
use serde::{Deserialize, Serialize};

use crate::error::{Result, require};

/// A bound on gradients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Clip {
    /// Clamps each number to `[min, max]`.
    Value {
        /// The lower bound.
        min: f32,
        /// The upper bound.
        max: f32,
    },
    /// Scales each gradient down to this Euclidean norm if it is longer.
    Norm(f32),
    /// Scales all gradients of a step by one factor, so that their global norm is at most this.
    GlobalNorm(f32),
}

impl Clip {
    /// Fails if a bound is out of range.
    pub fn validate(&self) -> Result<()> {
        match *self {
            Clip::Value { min, max } => {
                require(min <= max, "clip by value", "max", "at least `min`", format!("[{min}, {max}]"))
            }
            Clip::Norm(norm) => require(norm > 0.0, "clip by norm", "norm", "a number above 0", norm),
            Clip::GlobalNorm(norm) => require(norm > 0.0, "clip by global norm", "norm", "a number above 0", norm),
        }
    }

    /// Clips the gradients of one step.
    pub fn apply(&self, gradients: &mut [&mut [f32]]) {
        match *self {
            Clip::Value { min, max } => gradients.iter_mut().for_each(|gradient| by_value(gradient, min, max)),
            Clip::Norm(norm) => gradients.iter_mut().for_each(|gradient| by_norm(gradient, norm)),
            Clip::GlobalNorm(norm) => {
                let total = gradients.iter().map(|gradient| sum_of_squares(gradient)).sum();
                let factor = global_scale(total, norm);
                if factor < 1.0 {
                    gradients.iter_mut().for_each(|gradient| scale(gradient, factor));
                }
            }
        }
    }
}

/// Clamps each number to `[min, max]`. NaN is unchanged, so that the table refuses it.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn by_value(gradient: &mut [f32], min: f32, max: f32) {
    for g in gradient {
        *g = if *g < min { min } else { *g };
        *g = if *g > max { max } else { *g };
    }
}

/// Scales `gradient` down to the Euclidean norm `max_norm` if it is longer.
pub fn by_norm(gradient: &mut [f32], max_norm: f32) {
    let factor = global_scale(sum_of_squares(gradient), max_norm);
    if factor < 1.0 {
        scale(gradient, factor);
    }
}

/// The factor that scales gradients with a sum of squares `total` down to `max_norm`: `max_norm / max(norm, max_norm)`.
pub fn global_scale(total: f64, max_norm: f32) -> f32 {
    let max_norm = f64::from(max_norm);
    (max_norm / total.sqrt().max(max_norm)) as f32
}

/// Multiplies each number by `factor`.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn scale(gradient: &mut [f32], factor: f32) {
    for g in gradient {
        *g *= factor;
    }
}

/// The sum of squares, in double precision.
///
/// Sixteen partial sums, added in a fixed order: bit-identical whatever the machine's vector width.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn sum_of_squares(gradient: &[f32]) -> f64 {
    let mut sums = [0.0f64; 16];
    let blocks = gradient.chunks_exact(16);
    let rest = blocks.remainder();
    for block in blocks {
        for lane in 0..16 {
            let g = f64::from(block[lane]);
            sums[lane] += g * g;
        }
    }
    for (sum, g) in sums.iter_mut().zip(rest) {
        *sum += f64::from(*g) * f64::from(*g);
    }
    sums.iter().sum()
}

/// Whether every number is neither NaN nor infinite.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn is_finite(gradient: &[f32]) -> bool {
    // An exponent of all ones is an infinity or NaN. Comparing and or-ing integers is independent of the order, so it
    // vectorises.
    const EXPONENT: u32 = 0x7f80_0000;
    gradient.iter().fold(0u32, |found, g| found | u32::from(g.to_bits() & EXPONENT == EXPONENT)) == 0
}

/// Gradients of this size and above are refused by tables: most rules add up squares, which would soon be infinite, and a
/// weight with an infinite sum of squares never changes again.
pub const TOO_LARGE: f32 = (1u64 << 60) as f32;

/// Whether a table accepts every number: finite and smaller than [`TOO_LARGE`].
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn is_usable(gradient: &[f32]) -> bool {
    all_usable(gradient)
}

/// [`is_usable`] for callers that are already compiled for the machine's vector instructions.
#[inline(always)]
pub(crate) fn all_usable(gradient: &[f32]) -> bool {
    // Without the sign, the bits of floats are ordered like the floats, with infinities and NaNs above all.
    const BOUND: i32 = TOO_LARGE.to_bits() as i32;
    const MAGNITUDE: u32 = 0x7fff_ffff;
    gradient.iter().fold(0u32, |found, g| found | u32::from((g.to_bits() & MAGNITUDE) as i32 >= BOUND)) == 0
}

/// Whether every number is in `[-limit, limit]`; NaN is not.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn is_within(gradient: &[f32], limit: f32) -> bool {
    gradient.iter().fold(true, |within, g| within & (g.abs() <= limit))
}

/// Clamps each number to `[-limit, limit]` and replaces NaN by 0; returns whether anything changed.
pub fn mend(gradient: &mut [f32], limit: f32) -> bool {
    let mut changed = false;
    for g in gradient {
        let mended = if g.is_nan() { 0.0 } else { g.clamp(-limit, limit) };
        changed |= mended.to_bits() != g.to_bits();
        *g = mended;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_by_value_bounds_each_number() {
        let mut gradient = [-3.0, -0.5, 0.5, 3.0];
        Clip::Value { min: -1.0, max: 2.0 }.apply(&mut [&mut gradient]);
        assert_eq!(gradient, [-1.0, -0.5, 0.5, 2.0]);
    }

    #[test]
    fn clipping_by_norm_keeps_the_direction_and_leaves_short_gradients_alone() {
        let (mut long, mut short) = ([3.0, 4.0], [0.3, 0.4]);
        Clip::Norm(1.0).apply(&mut [&mut long, &mut short]);
        assert_eq!(long, [0.6, 0.8]);
        assert_eq!(short, [0.3, 0.4]);
    }

    #[test]
    fn the_global_norm_is_taken_over_all_gradients_of_a_step() {
        let (mut a, mut b) = ([3.0, 0.0], [0.0, 4.0]);
        Clip::GlobalNorm(2.5).apply(&mut [&mut a, &mut b]);
        assert_eq!((a, b), ([1.5, 0.0], [0.0, 2.0]));
        assert_eq!(global_scale(25.0, 10.0), 1.0);
    }

    #[test]
    fn sums_of_squares_cover_the_rest_after_the_last_whole_block() {
        let gradient: Vec<f32> = (1..=37).map(|i| i as f32).collect();
        assert_eq!(sum_of_squares(&gradient), 37.0 * 38.0 * 75.0 / 6.0);
    }

    #[test]
    fn numbers_too_large_to_be_squared_are_not_usable() {
        for bad in [f32::NAN, f32::INFINITY, 1e38, -1e38, TOO_LARGE] {
            let mut gradient = [1e17; 19];
            assert!(is_usable(&gradient));
            gradient[11] = bad;
            assert!(!is_usable(&gradient));
        }
    }

    #[test]
    fn mending_leaves_sound_numbers_alone() {
        let mut sound = [-5.0, 0.0, -0.0, 5.0];
        assert!(!mend(&mut sound, 5.0));
        let mut broken = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 7.0, 1.0];
        assert!(mend(&mut broken, 5.0));
        assert_eq!(broken, [0.0, 5.0, -5.0, 5.0, 1.0]);
    }

    #[test]
    fn one_non_finite_number_is_found_at_any_position() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in 0..19 {
                let mut gradient = [f32::MAX; 19];
                assert!(is_finite(&gradient));
                gradient[at] = bad;
                assert!(!is_finite(&gradient));
            }
        }
    }
}
