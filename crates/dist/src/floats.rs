//! How floats are encoded in a payload: with 32 bits, or rounded to 16 bits.
//!
//! Full floats are copied once and read in place. Narrow ones (`bfloat16`: a float without its lower half) cost a pass over the
//! numbers on both sides and halve the traffic. Gradients are rounded stochastically: up with a probability given by their
//! lower half, so they are unbiased and training converges as with full floats; a number that fits into 16 bits is unchanged.
//! Dense values are narrow only as 8-bit differences from the reader's copy, with error feedback. The strategy chooses the
//! width.

use multiversion::multiversion;
use openfleet_core::bfloat16::{round_all_stochastically, widen_all};
use openfleet_core::key::mix;
use openfleet_core::strategy::FloatWidth;

use crate::error::Result;
use crate::frame::{Payload, PayloadPool, Reader};

/// Appends gradients; `chance` is the seed for rounding narrow ones.
pub(crate) fn put(payload: &mut Payload, width: FloatWidth, gradients: &[f32], chance: u64) {
    match width {
        FloatWidth::Bits32 => payload.put(gradients),
        FloatWidth::Bits16 => round_stochastically(gradients, payload.append(gradients.len()), chance),
    }
}

/// Appends `count` rows of `dim` gradients each; `chance` is the seed for rounding narrow ones.
pub(crate) fn put_rows<'a>(
    payload: &mut Payload,
    width: FloatWidth,
    count: usize,
    dim: usize,
    rows: impl Iterator<Item = &'a [f32]>,
    chance: u64,
) {
    match width {
        FloatWidth::Bits32 => {
            let room = payload.append::<f32>(count * dim);
            room.chunks_exact_mut(dim).zip(rows).for_each(|(to, from)| to.copy_from_slice(from));
        }
        FloatWidth::Bits16 => {
            let room = payload.append::<u16>(count * dim);
            for (row, (to, from)) in room.chunks_exact_mut(dim).zip(rows).enumerate() {
                round_stochastically(from, to, mix(chance ^ row as u64));
            }
        }
    }
}

/// Number of differences that share a scale.
const CHUNK: usize = 256;

/// Appends the differences of `values` from the reader's copy, 8 bits each, and adds to `held` what the reader will add. This
/// is error feedback: what rounding leaves out of one difference is part of the next, so nothing is lost, however coarse the
/// differences are.
///
/// ```text
/// per 256 values: the largest difference / 127 | per value: its difference in units of that
/// ```
pub(crate) fn put_differences(payload: &mut Payload, values: &[f32], held: &mut [f32]) {
    let chunks = values.len().div_ceil(CHUNK);
    let scale_bytes = (chunks * size_of::<f32>()).next_multiple_of(8);
    let room = payload.append::<u8>(scale_bytes + values.len());
    let (scales, units) = room.split_at_mut(scale_bytes);
    let scales = bytemuck::cast_slice_mut::<u8, f32>(scales);
    scales[chunks..].fill(0.0);
    let units = bytemuck::cast_slice_mut::<u8, i8>(units).chunks_mut(CHUNK);
    for (((values, held), units), scale) in values.chunks(CHUNK).zip(held.chunks_mut(CHUNK)).zip(units).zip(scales) {
        *scale = quantize(values, held, units);
    }
}

/// Adds the next differences to `held`.
pub(crate) fn add_differences(reader: &mut Reader<'_>, held: &mut [f32]) -> Result<()> {
    let scales = reader.take::<f32>(held.len().div_ceil(CHUNK))?;
    let units = reader.take::<i8>(held.len())?;
    for ((held, units), &scale) in held.chunks_mut(CHUNK).zip(units.chunks(CHUNK)).zip(scales) {
        add_units(held, units, scale);
    }
    Ok(())
}

/// Quantizes differences in units of the largest one / 127, which it returns, and adds the result to `held`.
#[multiversion(targets("x86_64+avx2+fma"))]
fn quantize(values: &[f32], held: &mut [f32], units: &mut [i8]) -> f32 {
    // Adding it to a float below 2^22 and subtracting it again rounds to the nearest integer.
    const ROUND: f32 = 1.5 * (1u32 << 23) as f32;
    let largest = largest_difference(values, held);
    // If a difference overflows a float, it takes two rounds.
    let scale = largest.min(f32::MAX / 2.0) / 127.0;
    let inverse = if scale > f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
    for ((value, held), unit) in values.iter().zip(held).zip(units) {
        let rounded = ((value - *held) * inverse).clamp(-127.0, 127.0) + ROUND;
        // The lowest bits of the sum are those of the integer, which costs less than a conversion.
        *unit = rounded.to_bits() as i8;
        *held += (rounded - ROUND) * scale;
    }
    scale
}

/// In lanes with an order of their own, because a chain of maxima is not vectorized. Differences that are not numbers are ignored.
#[inline(always)]
fn largest_difference(values: &[f32], held: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut most = [0.0f32; LANES];
    let (values, held) = (values.chunks(LANES), held.chunks(LANES));
    for (values, held) in values.zip(held) {
        for ((most, value), held) in most.iter_mut().zip(values).zip(held) {
            let difference = (value - held).abs();
            *most = if difference > *most { difference } else { *most };
        }
    }
    most.into_iter().fold(0.0, f32::max)
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn add_units(held: &mut [f32], units: &[i8], scale: f32) {
    for (held, &unit) in held.iter_mut().zip(units) {
        *held += f32::from(unit) * scale;
    }
}

/// Floats of a payload.
#[derive(Debug)]
pub enum Floats<'a> {
    /// Full floats, in place.
    InPlace(&'a [f32]),
    /// Narrow floats, converted.
    Widened(Payload),
}

impl std::ops::Deref for Floats<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Floats::InPlace(floats) => floats,
            Floats::Widened(payload) => bytemuck::cast_slice(payload.bytes()),
        }
    }
}

/// Reads the next `count` values. Narrow ones are converted into memory of the pool.
pub(crate) fn take<'a>(
    reader: &mut Reader<'a>,
    width: FloatWidth,
    pool: &PayloadPool,
    count: usize,
) -> Result<Floats<'a>> {
    Ok(match width {
        FloatWidth::Bits32 => Floats::InPlace(reader.take(count)?),
        FloatWidth::Bits16 => {
            // Check that the bytes exist before memory for as many values is allocated.
            let narrow = reader.take::<u16>(count)?;
            let mut values = pool.sized(size_of_val(narrow) * 2);
            widen_all(narrow, bytemuck::cast_slice_mut(values.bytes_mut()));
            Floats::Widened(values)
        }
    })
}

/// Skips the next `count` values.
pub(crate) fn skip(reader: &mut Reader<'_>, width: FloatWidth, count: usize) -> Result<()> {
    match width {
        FloatWidth::Bits32 => reader.take::<f32>(count).map(drop),
        FloatWidth::Bits16 => reader.take::<u16>(count).map(drop),
    }
}

/// Reads the next values into a slice.
pub(crate) fn take_into(reader: &mut Reader<'_>, values: &mut [f32]) -> Result<()> {
    values.copy_from_slice(reader.take(values.len())?);
    Ok(())
}

/// Rounds each number to 16 bits, up or down at random; the seed is mixed, because callers count.
fn round_stochastically(from: &[f32], to: &mut [u16], chance: u64) {
    round_all_stochastically(from, to, (mix(chance) >> 32) as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_rounded_to_either_neighbour_and_right_in_the_mean() {
        let values = [1.0, -256.0, 0.0, 1.0 + 1.0 / 512.0, -3.0 - 3.0 / 256.0, 1e-30];
        let (mut sums, rounds, pool) = ([0.0f64; 6], 20_000, PayloadPool::default());
        for chance in 0..rounds {
            let mut payload = Payload::new();
            put(&mut payload, FloatWidth::Bits16, &values, chance);
            let mut rows = Payload::new();
            put_rows(&mut rows, FloatWidth::Bits16, 3, 2, values.chunks(2), chance);
            for payload in [payload, rows] {
                let taken = take(&mut Reader::new(payload.bytes()), FloatWidth::Bits16, &pool, 6).unwrap().to_vec();
                assert_eq!(taken[..3], values[..3], "what 16 bits hold stays as it is");
                assert!(taken.iter().zip(values).all(|(taken, value)| (taken - value).abs() <= value.abs() / 128.0));
                sums.iter_mut().zip(&taken).for_each(|(sum, taken)| *sum += f64::from(*taken));
            }
        }
        for (sum, value) in sums.into_iter().zip(values) {
            let mean = sum / (2 * rounds) as f64;
            assert!((mean - f64::from(value)).abs() <= f64::from(value.abs()) * 1e-4, "{mean} for {value}");
        }
        let mut payload = Payload::new();
        put(&mut payload, FloatWidth::Bits32, &values, 7);
        assert_eq!(*take(&mut Reader::new(payload.bytes()), FloatWidth::Bits32, &pool, 6).unwrap(), values);
    }

    #[test]
    fn differences_bring_a_copy_to_the_value() {
        let mut values: Vec<f32> = (0..600).map(|at| (at as f32 * 0.37).sin() * 3.0).collect();
        (values[0], values[1], values[2]) = (1e6, -9.876_543e-3, -1e-30);
        let (mut sent, mut held) = (vec![0.0f32; 600], vec![0.0f32; 600]);
        for round in 0..12 {
            let mut payload = Payload::new();
            put_differences(&mut payload, &values, &mut sent);
            let mut reader = Reader::new(payload.bytes());
            add_differences(&mut reader, &mut held).unwrap();
            reader.end().unwrap();
            assert_eq!(held, sent, "both sides hold the same");
            if round == 0 {
                let worst = values[256..].iter().zip(&held[256..]).map(|(v, h)| (v - h).abs()).fold(0.0, f32::max);
                assert!(worst <= 3.0 / 254.0 * 1.01, "{worst}");
            }
        }
        let near = |value: f32, held: f32| (value - held).abs() <= value.abs() * f32::EPSILON + 1e-9;
        assert!(values.iter().zip(&held).all(|(&value, &held)| near(value, held)));
        // A difference that overflows takes several rounds.
        let (values, mut held) = ([f32::MAX, -f32::MAX], [-f32::MAX, f32::MAX]);
        for _ in 0..8 {
            put_differences(&mut Payload::new(), &values, &mut held);
            assert!(held.iter().all(|held| held.is_finite()));
        }
        assert!((held[0] / f32::MAX - 1.0).abs() < 1e-6 && (held[1] / -f32::MAX - 1.0).abs() < 1e-6, "{held:?}");
    }

    #[test]
    fn not_a_number_stays_one() {
        let mut payload = Payload::new();
        put(&mut payload, FloatWidth::Bits16, &[f32::NAN], 1);
        assert!(
            take(&mut Reader::new(payload.bytes()), FloatWidth::Bits16, &PayloadPool::default(), 1).unwrap()[0]
                .is_nan()
        );
    }

    #[test]
    fn a_short_payload_is_an_error_before_anything_is_allocated() {
        let payload = Payload::zeros(8);
        assert!(
            take(&mut Reader::new(payload.bytes()), FloatWidth::Bits16, &PayloadPool::default(), usize::MAX).is_err()
        );
    }
}
