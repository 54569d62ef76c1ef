//! bfloat16: the upper half of a 32-bit float, held as the bits of a `u16`.
//!
//! Rows of sparse tables and floats on the wire use these conversions, so there is one definition of how a number loses its
//! lower half. Widening is exact. Rounding is to the nearest value, for numbers that are stored once, or stochastic, for
//! numbers that are updated or added up many times: up with a probability given by the lower half, so the mean is right and
//! small updates are not lost.
//!
//! The random bits are a hash of a seed and a position. There is no generator with a state: the same seed gives the same
//! bits, whatever was rounded before, and eight positions are computed at once.

use multiversion::multiversion;

const EXPONENT: u32 = 0x7f80_0000;

/// The float with these upper 16 bits.
#[inline(always)]
pub fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest value, of two equally near the one with an even last bit. NaN stays NaN.
#[inline(always)]
pub fn round_to_nearest(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    upper_half(bits, if bits & EXPONENT == EXPONENT { bits } else { rounded })
}

/// Rounds away from zero with a probability equal to the lower half's share of the step between two neighbours, else towards
/// zero. Uses the upper 16 bits of `random`. What fits into 16 bits is unchanged, a finite number stays finite, and NaN stays
/// NaN.
#[inline(always)]
pub fn round_stochastically(value: f32, random: u32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(random >> 16);
    // Infinities and NaN are not rounded, nor is a number whose upper neighbour is infinite. There is no branch, because a
    // branch would keep the compiler from vectorising.
    let is_special = (bits & EXPONENT == EXPONENT) | (rounded & EXPONENT == EXPONENT);
    upper_half(bits, if is_special { bits } else { rounded })
}

/// 32 random bits for a position; the same for the same seed. The upper half is the better one.
#[inline(always)]
pub fn random_bits(seed: u32, position: u32) -> u32 {
    let mut random = seed.wrapping_add(position.wrapping_mul(0x9e37_79b9));
    random = (random ^ (random >> 16)).wrapping_mul(0x85eb_ca6b);
    (random ^ (random >> 13)).wrapping_mul(0xc2b2_ae35)
}

/// [`widen`] for a whole slice.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn widen_all(from: &[u16], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = widen(*from);
    }
}

/// [`round_stochastically`] for a whole slice, with [`random_bits`] of the positions.
#[multiversion(targets("x86_64+avx2+fma"))]
pub fn round_all_stochastically(from: &[f32], to: &mut [u16], seed: u32) {
    for (at, (to, from)) in to.iter_mut().zip(from).enumerate() {
        *to = round_stochastically(*from, random_bits(seed, at as u32));
    }
}

/// The upper half of a rounded number; if it was NaN, with a bit that keeps it from becoming an infinity.
#[inline(always)]
fn upper_half(bits: u32, rounded: u32) -> u16 {
    let is_nan = bits & 0x7fff_ffff > EXPONENT;
    ((rounded | if is_nan { 0x0040_0000 } else { 0 }) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_value_is_chosen_and_ties_go_to_the_even_one() {
        // A step of bfloat16 at 1 is 1/128; halves of it are ties.
        let cases = [
            (1.0, 1.0),
            (1.0 + 0.49 / 128.0, 1.0),
            (1.0 + 0.5 / 128.0, 1.0),
            (1.0 + 0.51 / 128.0, 1.0 + 1.0 / 128.0),
            (1.0 + 1.5 / 128.0, 1.0 + 2.0 / 128.0),
            (-1.0 - 0.51 / 128.0, -1.0 - 1.0 / 128.0),
            (0.0, 0.0),
            (f32::INFINITY, f32::INFINITY),
        ];
        for (value, expected) in cases {
            assert_eq!(widen(round_to_nearest(value)), expected, "{value}");
        }
        assert!(widen(round_to_nearest(f32::from_bits(0x7f80_0001))).is_nan());
    }

    #[test]
    fn stochastic_rounding_gives_either_neighbour_and_the_right_mean() {
        // A quarter of a step above 1, and three eighths of a step beyond -3 (where a step is 1/64).
        for (value, low, high) in
            [(1.0 + 0.25 / 128.0, 1.0, 1.0 + 1.0 / 128.0), (-3.0 - 0.375 / 64.0, -3.0 - 1.0 / 64.0, -3.0)]
        {
            let values = vec![value; 64];
            let (mut rounded, mut sum, seeds) = (vec![0; 64], 0.0f64, 4000);
            for seed in 0..seeds {
                round_all_stochastically(&values, &mut rounded, crate::key::mix(seed) as u32);
                for bits in &rounded {
                    assert!([low, high].contains(&widen(*bits)), "{value} became {}", widen(*bits));
                    sum += f64::from(widen(*bits));
                }
            }
            let mean = sum / (seeds * 64) as f64;
            // The standard error of the mean is half a step / sqrt(256,000): 1.5e-5 for the larger one.
            assert!((mean - f64::from(value)).abs() < 6e-5, "{mean} instead of {value}");
        }
    }

    #[test]
    fn whatever_the_random_bits_exact_values_finite_values_and_nan_stay_what_they_are() {
        for random in [0, 0x0001_0000, 0x8000_0000, u32::MAX] {
            for exact in [0.0, -0.0, 1.0, -256.0, 1.5e-39, f32::INFINITY, f32::NEG_INFINITY] {
                let exact = f32::from_bits(exact.to_bits() & 0xffff_0000);
                assert_eq!(widen(round_stochastically(exact, random)).to_bits(), exact.to_bits());
            }
            assert!(widen(round_stochastically(f32::MAX, random)).is_finite());
            for nan in [0x7f80_0001, 0x7fff_ffff, 0xffff_ffff] {
                assert!(widen(round_stochastically(f32::from_bits(nan), random)).is_nan());
            }
        }
    }

    #[test]
    fn widening_a_slice_gives_back_every_value() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let mut values = vec![0.0; bits.len()];
        widen_all(&bits, &mut values);
        for (bits, value) in bits.into_iter().zip(values) {
            assert!(value.is_nan() || round_to_nearest(value) == bits, "{bits:04x}");
        }
    }
}
