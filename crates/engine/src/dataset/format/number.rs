//! Parses numbers from bytes: no UTF-8 check, no allocation.
//!
//! Parsing is most of a reader's work, so common numbers have a fast path: integers of at most 19 digits, and decimals whose
//! digits fit 53 bits with at most 22 of them after the point. Everything else goes to a checked loop or to `fast-float2`; both
//! paths return the same, correctly rounded, value.
//!
//! The functions stop at the first byte that is not part of the number; the format decides what may follow.

use openfleet_core::Key;

/// Parses a 64-bit integer, signed or unsigned, and returns the rest. Negative numbers are stored in two's complement.
#[inline(always)]
pub(crate) fn integer(bytes: &[u8]) -> Option<(Key, &[u8])> {
    if let [b'-', rest @ ..] = bytes {
        return negative(rest);
    }
    unsigned(bytes)
}

/// Parses an unsigned 64-bit integer and returns the rest.
#[inline(always)]
pub(crate) fn unsigned(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value: u64 = 0;
    let mut digits = 0;
    while let Some(digit) = digit_at(bytes, digits) {
        value = value.wrapping_mul(10).wrapping_add(digit);
        digits += 1;
    }
    match digits {
        0 => None,
        1..=19 => Some((value, &bytes[digits..])),
        _ => unsigned_checked(&bytes[..digits]).map(|value| (value, &bytes[digits..])),
    }
}

#[cold]
fn unsigned_checked(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

#[cold]
fn negative(bytes: &[u8]) -> Option<(Key, &[u8])> {
    let (magnitude, rest) = unsigned(bytes)?;
    (magnitude <= 1 << 63).then(|| (magnitude.wrapping_neg(), rest))
}

/// Parses a finite decimal number and returns the rest. `nan` and `inf` are rejected.
#[inline(always)]
pub(crate) fn float(bytes: &[u8]) -> Option<(f32, &[u8])> {
    short_decimal(bytes).or_else(|| any_decimal(bytes))
}

/// `[-]digits[.digits]`, exact or `None`.
#[inline(always)]
fn short_decimal(bytes: &[u8]) -> Option<(f32, &[u8])> {
    let negative = bytes.first() == Some(&b'-');
    let mut at = usize::from(negative);
    let mut mantissa: u64 = 0;
    let first = at;
    while let Some(digit) = digit_at(bytes, at) {
        mantissa = mantissa.wrapping_mul(10).wrapping_add(digit);
        at += 1;
    }
    let mut digits = at - first;
    let mut decimals = 0;
    if bytes.get(at) == Some(&b'.') {
        at += 1;
        let point = at;
        while let Some(digit) = digit_at(bytes, at) {
            mantissa = mantissa.wrapping_mul(10).wrapping_add(digit);
            at += 1;
        }
        decimals = at - point;
        digits += decimals;
    }
    // 19 digits cannot have wrapped; 53 bits and a power of ten up to 22 are exact in an f64, and so is their quotient
    // rounded once.
    if digits == 0 || digits > 19 || mantissa >> 53 != 0 || matches!(bytes.get(at), Some(b'e' | b'E')) {
        return None;
    }
    let value = mantissa as f64 / POWERS_OF_TEN[decimals];
    // Rounding a second time, to f32, is correct unless the f64 is exactly between two f32s: the lower 29 bits are then a one and
    // zeros. Subnormal f32s lose more than 29 bits.
    if value.to_bits() & 0x1fff_ffff == 0x1000_0000 || (mantissa != 0 && value < f64::from(f32::MIN_POSITIVE)) {
        return None;
    }
    let value = value as f32;
    Some((if negative { -value } else { value }, &bytes[at..]))
}

#[cold]
fn any_decimal(bytes: &[u8]) -> Option<(f32, &[u8])> {
    let (value, length) = fast_float2::parse_partial::<f32, _>(bytes).ok()?;
    value.is_finite().then(|| (value, &bytes[length..]))
}

#[inline(always)]
fn digit_at(bytes: &[u8], at: usize) -> Option<u64> {
    let digit = bytes.get(at)?.wrapping_sub(b'0');
    (digit < 10).then_some(u64::from(digit))
}

const POWERS_OF_TEN: [f64; 20] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integers_cover_both_ranges_of_64_bits_and_nothing_beyond() {
        assert_eq!(integer(b"0 x"), Some((0, &b" x"[..])));
        assert_eq!(integer(b"18446744073709551615"), Some((u64::MAX, &b""[..])));
        assert_eq!(integer(b"18446744073709551616"), None);
        assert_eq!(integer(b"00000000000000000000000007"), Some((7, &b""[..])));
        assert_eq!(integer(b"-1"), Some((u64::MAX, &b""[..])));
        assert_eq!(integer(b"-9223372036854775808"), Some((1 << 63, &b""[..])));
        assert_eq!(integer(b"-9223372036854775809"), None);
        for garbage in ["", "-", "x", "+1", " 1"] {
            assert_eq!(integer(garbage.as_bytes()), None, "{garbage}");
        }
    }

    #[test]
    fn a_number_ends_where_its_digits_end() {
        assert_eq!(integer(b"12:3"), Some((12, &b":3"[..])));
        assert_eq!(float(b"1.5x"), Some((1.5, &b"x"[..])));
        assert_eq!(float(b"1.5e2\t"), Some((150.0, &b"\t"[..])));
    }

    #[test]
    fn floats_must_be_finite() {
        for garbage in ["", "-", ".", "nan", "inf", "-infinity", "1e39", "x"] {
            assert_eq!(float(garbage.as_bytes()), None, "{garbage}");
        }
        assert_eq!(float(b"1e-50"), Some((0.0, &b""[..])));
    }

    #[test]
    fn a_decimal_just_off_the_middle_of_two_floats_is_rounded_once() {
        // 1 + 2^-24 is halfway between two f32s; one more digit, beyond the precision of an f64, decides.
        let text = "1.000000059604644776";
        assert_eq!(float(text.as_bytes()).map(|(value, _)| value), text.parse().ok());
    }

    proptest! {
        #[test]
        fn every_decimal_is_the_nearest_float(text in "-?[0-9]{1,12}(\\.[0-9]{0,14})?") {
            let (value, rest) = float(text.as_bytes()).unwrap();
            prop_assert!(rest.is_empty());
            prop_assert_eq!(value.to_bits(), text.parse::<f32>().unwrap().to_bits());
        }

        #[test]
        fn every_integer_comes_back(value: u64, signed: i64) {
            for (text, expected) in [(value.to_string(), value), (signed.to_string(), signed as u64)] {
                prop_assert_eq!(integer(text.as_bytes()), Some((expected, &b""[..])));
            }
        }
    }
}
