//! How floats are written into a payload and read from it: as they are, or rounded to 16 bits.
//!
//! Full floats are copied once and read in place. Narrow ones (`bfloat16`: a float without its lower half, rounded to
//! nearest) cost a pass over the values on either side and halve the bytes between them. Who chooses, and when that is
//! good enough, is the strategy's affair.

use std::borrow::Cow;

use half::bf16;
use half::slice::HalfFloatSliceExt;
use openfleet_core::strategy::FloatWidth;

use crate::error::Result;
use crate::frame::{Payload, Reader};

/// Appends values.
pub fn put(payload: &mut Payload, width: FloatWidth, values: &[f32]) {
    match width {
        FloatWidth::Bits32 => payload.put(values),
        FloatWidth::Bits16 => narrow(values, payload.room(values.len())),
    }
}

/// Appends `count` rows of `dim` values each.
pub fn put_rows<'a>(
    payload: &mut Payload,
    width: FloatWidth,
    count: usize,
    dim: usize,
    rows: impl Iterator<Item = &'a [f32]>,
) {
    match width {
        FloatWidth::Bits32 => {
            let room = payload.room::<f32>(count * dim);
            room.chunks_exact_mut(dim).zip(rows).for_each(|(to, from)| to.copy_from_slice(from));
        }
        FloatWidth::Bits16 => {
            let room = payload.room::<bf16>(count * dim);
            room.chunks_exact_mut(dim).zip(rows).for_each(|(to, from)| narrow(from, to));
        }
    }
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
            put(&mut payload, width, &values);
            put_rows(&mut payload, width, 3, 2, values.chunks(2));
            fill(&mut payload, width, 6, |room| {
                room.copy_from_slice(&values);
                Ok::<(), ()>(())
            })
            .unwrap();
            let mut reader = Reader::new(payload.bytes());
            assert_eq!(*take(&mut reader, width, 6).unwrap(), expected);
            assert_eq!(*take(&mut reader, width, 6).unwrap(), expected);
            let mut read = [0.0; 6];
            take_into(&mut reader, width, &mut read).unwrap();
            assert_eq!(read, expected);
            reader.end().unwrap();
        }
    }

    #[test]
    fn not_a_number_stays_one() {
        let mut payload = Payload::new();
        put(&mut payload, FloatWidth::Bits16, &[f32::NAN]);
        assert!(take(&mut Reader::new(payload.bytes()), FloatWidth::Bits16, 1).unwrap()[0].is_nan());
    }

    #[test]
    fn a_short_payload_is_an_error_before_anything_is_allocated() {
        let payload = Payload::zeros(8);
        assert!(take(&mut Reader::new(payload.bytes()), FloatWidth::Bits16, usize::MAX).is_err());
    }
}
