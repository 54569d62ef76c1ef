//! An array of numbers as PaddlePaddle's files have it, converted to the numbers that a checkpoint has.

use openfleet_table::checkpoint::StateElements;

/// An array with its dimensions, in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Value {
    pub(crate) dims: Vec<usize>,
    pub(crate) elements: StateElements,
}

/// The types of elements that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
    F32,
    F64,
    I32,
    I64,
}

impl Element {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Element::F16 | Element::Bf16 => 2,
            Element::F32 | Element::I32 => 4,
            Element::F64 | Element::I64 => 8,
        }
    }

    /// Converts little-endian bytes: floats to 32 bits, integers to 64.
    pub(crate) fn read(self, bytes: &[u8]) -> StateElements {
        match self {
            Element::F16 => StateElements::F32(halves(bytes).map(from_half).collect()),
            Element::Bf16 => {
                StateElements::F32(halves(bytes).map(|half| f32::from_bits(u32::from(half) << 16)).collect())
            }
            Element::F32 => StateElements::F32(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
            Element::F64 => {
                StateElements::F32(bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect())
            }
            Element::I32 => {
                StateElements::I64(bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect())
            }
            Element::I64 => StateElements::I64(bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
        }
    }
}

/// The number of elements of an array of these dimensions; `None` if it does not fit into memory.
pub(crate) fn count(dims: &[usize]) -> Option<usize> {
    dims.iter().try_fold(1usize, |count, dim| count.checked_mul(*dim))
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b))
}

/// An IEEE float of 16 bits: 1 sign, 5 exponent, 10 fraction.
fn from_half(half: u16) -> f32 {
    let (exponent, fraction) = (half >> 10 & 0x1f, f32::from(half & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        0x1f if half & 0x3ff == 0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(i32::from(exponent) - 15),
    };
    if half >> 15 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_those_of_ieee() {
        // 1, -2, 65504 (the largest), 2^-14 (the smallest normal), 2^-24 (the smallest), infinity.
        let halves = [0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x7c00];
        let floats = [1.0, -2.0, 65504.0, 2f32.powi(-14), 2f32.powi(-24), f32::INFINITY];
        assert_eq!(halves.map(from_half), floats);
        assert!(from_half(0x7c01).is_nan());
    }
}
