//! How floats are written into a payload and read from it: as they are, or rounded to 16 bits.
//!
//! Full floats are copied once and read in place. Narrow ones (`bfloat16`: a float without its lower half) cost a pass over
//! the numbers on either side and halve the bytes between them. Gradients are rounded by chance, up as often as their lower half
//! says, so that their mean is right and training converges where it would with full floats; a number that 16 bits hold stays
//! as it is. Values are rounded to nearest, and travel narrow only as differences to what the reader holds. Who
//! chooses is the strategy's affair.

use std::borrow::Cow;

use half::bf16;
use half::slice::HalfFloatSliceExt;
use openfleet_core::key::mix;
use openfleet_core::strategy::FloatWidth;

use crate::error::Result;
use crate::frame::{Payload, Reader};

/// Appends gradients; `chance` decides how narrow ones are rounded.
pub fn put(payload: &mut Payload, width: FloatWidth, gradients: &[f32], chance: u64) {
    match width {
        FloatWidth::Bits32 => payload.put(gradients),
        FloatWidth::Bits16 => narrow_by_chance(gradients, payload.room(gradients.len()), chance),
    }
}

/// Appends `count` rows of `dim` gradients each; `chance` decides how narrow ones are rounded.
pub fn put_rows<'a>(
    payload: &mut Payload,
    width: FloatWidth,
    count: usize,
    dim: usize,
    rows: impl Iterator<Item = &'a [f32]>,
    chance: u64,
) {
    match width {
        FloatWidth::Bits32 => {
            let room = payload.room::<f32>(count * dim);
            room.chunks_exact_mut(dim).zip(rows).for_each(|(to, from)| to.copy_from_slice(from));
        }
        FloatWidth::Bits16 => {
            let room = payload.room::<bf16>(count * dim);
            for (row, (to, from)) in room.chunks_exact_mut(dim).zip(rows).enumerate() {
                narrow_by_chance(from, to, mix(chance ^ row as u64));
            }
        }
    }
}

/// Appends the differences of values to what the reader holds, narrow, and moves `held` by what it will read.
pub fn put_differences(payload: &mut Payload, values: &[f32], held: &mut [f32]) {
    let room = payload.room::<bf16>(values.len());
    for ((to, &value), held) in room.iter_mut().zip(values).zip(held) {
        *to = bf16::from_f32(value - *held);
        *held += to.to_f32();
    }
}

/// Adds the next differences to what is held.
pub fn add_differences(reader: &mut Reader<'_>, held: &mut [f32]) -> Result<()> {
    let differences = reader.take::<bf16>(held.len())?;
    held.iter_mut().zip(differences).for_each(|(held, difference)| *held += difference.to_f32());
    Ok(())
}

/// Appends `count` values that somebody else writes, in place where they travel as they are.
pub fn fill<E>(
    payload: &mut Payload,
    width: FloatWidth,
    count: usize,
    write: impl FnOnce(&mut [f32]) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    match width {
        FloatWidth::Bits32 => write(payload.room(count)),
        FloatWidth::Bits16 => {
            let mut values = vec![0.0; count];
            write(&mut values)?;
            narrow(&values, payload.room(count));
            Ok(())
        }
    }
}

/// The next `count` values.
pub fn take<'a>(reader: &mut Reader<'a>, width: FloatWidth, count: usize) -> Result<Cow<'a, [f32]>> {
    Ok(match width {
        FloatWidth::Bits32 => Cow::Borrowed(reader.take(count)?),
        FloatWidth::Bits16 => {
            // The bytes are there before as many values are allocated.
            let narrow = reader.take::<bf16>(count)?;
            let mut values = vec![0.0; count];
            widen(narrow, &mut values);
            Cow::Owned(values)
        }
    })
}

/// Passes over the next `count` values.
pub fn skip(reader: &mut Reader<'_>, width: FloatWidth, count: usize) -> Result<()> {
    match width {
        FloatWidth::Bits32 => reader.take::<f32>(count).map(drop),
        FloatWidth::Bits16 => reader.take::<bf16>(count).map(drop),
    }
}

/// The next values, as many as there is room for.
pub fn take_into(reader: &mut Reader<'_>, width: FloatWidth, values: &mut [f32]) -> Result<()> {
    match width {
        FloatWidth::Bits32 => values.copy_from_slice(reader.take(values.len())?),
        FloatWidth::Bits16 => widen(reader.take(values.len())?, values),
    }
    Ok(())
}

/// Up with the probability that the lower half is of the step between two neighbours, else down.
fn narrow_by_chance(from: &[f32], to: &mut [bf16], chance: u64) {
    const EXPONENT: u32 = 0x7f80_0000;
    let seed = (mix(chance) >> 32) as u32;
    for (at, (to, from)) in to.iter_mut().zip(from).enumerate() {
        let mut random = (at as u32).wrapping_mul(0x9e37_79b9) ^ seed;
        random = (random ^ (random >> 16)).wrapping_mul(0x85eb_ca6b);
        random = (random ^ (random >> 13)).wrapping_mul(0xc2b2_ae35);
        let bits = from.to_bits();
        // Infinities and NaN have nothing to round, and NaN must not become an infinity.
        let special = bits & EXPONENT == EXPONENT;
        let rounded = bits.wrapping_add(if special { 0 } else { random >> 16 });
        let quiet = if special && bits << 9 != 0 { 0x0040 } else { 0 };
        *to = bf16::from_bits((rounded >> 16) as u16 | quiet);
    }
}

fn narrow(from: &[f32], to: &mut [bf16]) {
    to.convert_from_f32_slice(from);
}

fn widen(from: &[bf16], to: &mut [f32]) {
    from.convert_to_f32_slice(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_floats_come_back_bit_by_bit_and_narrow_ones_rounded_to_eight_digits() {
        let values = [1.0, -0.5, 3.140_625, 1.0 + 1.0 / 256.0, 1e-30, f32::INFINITY];
        // Exact where eight binary digits are enough; a tie goes to the even neighbour.
        let rounded = [1.0, -0.5, 3.140_625, 1.0, bf16::from_f32(1e-30).to_f32(), f32::INFINITY];
        for (width, expected) in [(FloatWidth::Bits32, values), (FloatWidth::Bits16, rounded)] {
            let mut payload = Payload::new();
            fill(&mut payload, width, 6, |room| {
                room.copy_from_slice(&values);
                Ok::<(), ()>(())
            })
            .unwrap();
            let mut reader = Reader::new(payload.bytes());
            let mut read = [0.0; 6];
            take_into(&mut reader, width, &mut read).unwrap();
            assert_eq!(read, expected);
            reader.end().unwrap();
        }
    }

    #[test]
    fn gradients_are_rounded_to_either_neighbour_and_right_in_the_mean() {
        let values = [1.0, -256.0, 0.0, 1.0 + 1.0 / 512.0, -3.0 - 3.0 / 256.0, 1e-30];
        let (mut sums, rounds) = ([0.0f64; 6], 20_000);
        for chance in 0..rounds {
            let mut payload = Payload::new();
            put(&mut payload, FloatWidth::Bits16, &values, chance);
            let mut rows = Payload::new();
            put_rows(&mut rows, FloatWidth::Bits16, 3, 2, values.chunks(2), chance);
            for payload in [payload, rows] {
                let taken = take(&mut Reader::new(payload.bytes()), FloatWidth::Bits16, 6).unwrap().into_owned();
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
        assert_eq!(*take(&mut Reader::new(payload.bytes()), FloatWidth::Bits32, 6).unwrap(), values);
    }

    #[test]
    fn differences_bring_what_is_held_to_the_value() {
        let values = [1.234_567, -9.876_543e-3, 1e6];
        let (mut sent, mut held) = ([0.0f32; 3], [0.0f32; 3]);
        for _ in 0..6 {
            let mut payload = Payload::new();
            put_differences(&mut payload, &values, &mut sent);
            add_differences(&mut Reader::new(payload.bytes()), &mut held).unwrap();
            assert_eq!(held, sent, "both sides hold the same");
        }
        assert_eq!(held, values);
    }

    #[test]
    fn not_a_number_stays_one() {
        let mut payload = Payload::new();
        put(&mut payload, FloatWidth::Bits16, &[f32::NAN], 1);
        assert!(take(&mut Reader::new(payload.bytes()), FloatWidth::Bits16, 1).unwrap()[0].is_nan());
    }

    #[test]
    fn a_short_payload_is_an_error_before_anything_is_allocated() {
        let payload = Payload::zeros(8);
        assert!(take(&mut Reader::new(payload.bytes()), FloatWidth::Bits16, usize::MAX).is_err());
    }
}
