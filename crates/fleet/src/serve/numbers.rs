//! Reads nested JSON lists of numbers without building a tree.
//!
//! The elements of the outermost list are the rows; everything inside an element belongs to its row, in order, however it is
//! nested. Integers stay integers, so that ids keep all 64 bits. An element that is not a number is recorded and not refused
//! here, because only the caller knows the name of the input.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// One number as it was written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    /// From 0 to 2^64 - 1.
    Whole(u64),
    /// Below 0, from -2^63.
    Negative(i64),
    /// With a fraction or an exponent, or outside the other ranges.
    Float(f64),
}

/// The numbers of some rows.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Numbers {
    /// The numbers of all rows, one after the other.
    pub(crate) values: Vec<Number>,
    /// The number of values of each row.
    pub(crate) lengths: Vec<usize>,
    /// Whether any row is a list and not a single number.
    pub(crate) nested: bool,
    /// The first element that is not a number: its row and its kind.
    pub(crate) odd: Option<(usize, String)>,
}

impl Numbers {
    fn odd(&mut self, what: impl FnOnce() -> String) {
        let row = self.lengths.len();
        self.odd.get_or_insert_with(|| (row, what()));
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut numbers = Numbers::default();
        Rows(&mut numbers).deserialize(deserializer)?;
        Ok(numbers)
    }
}

/// Reads a list of rows.
pub(crate) struct Rows<'a>(pub(crate) &'a mut Numbers);

impl<'de> DeserializeSeed<'de> for Rows<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Rows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list with an element for each row")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while rows.next_element_seed(Row(&mut *self.0))?.is_some() {}
        Ok(())
    }
}

/// Reads one row: a number, or lists of numbers.
pub(crate) struct Row<'a>(pub(crate) &'a mut Numbers);

impl<'de> DeserializeSeed<'de> for Row<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let before = self.0.values.len();
        let is_list = Below(&mut *self.0).deserialize(deserializer)?;
        self.0.nested |= is_list;
        self.0.lengths.push(self.0.values.len() - before);
        Ok(())
    }
}

/// Reads everything inside a row; returns whether it is a list.
struct Below<'a>(&'a mut Numbers);

impl Below<'_> {
    fn number(self, number: Number) -> bool {
        self.0.values.push(number);
        false
    }

    fn odd(self, what: impl FnOnce() -> String) -> bool {
        self.0.odd(what);
        false
    }
}

impl<'de> DeserializeSeed<'de> for Below<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Below<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number, or a list of numbers")
    }

    fn visit_u64<E>(self, value: u64) -> Result<bool, E> {
        Ok(self.number(Number::Whole(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<bool, E> {
        // The parser calls this for negative numbers only.
        Ok(self.number(u64::try_from(value).map_or(Number::Negative(value), Number::Whole)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<bool, E> {
        Ok(self.number(Number::Float(value)))
    }

    fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
        Ok(self.number(Number::Whole(u64::from(value))))
    }

    fn visit_str<E>(self, value: &str) -> Result<bool, E> {
        Ok(self.odd(|| format!("the text {value:?}")))
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(self.odd(|| "null".into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<bool, A::Error> {
        while elements.next_element_seed(Below(&mut *self.0))?.is_some() {}
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(self.odd(|| "an object".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Numbers {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn rows_of_unequal_lengths_keep_them_and_scalars_are_rows_of_one() {
        let ragged = read("[[1,2],[3],[],4]");
        assert_eq!((ragged.lengths, ragged.nested), (vec![2, 1, 0, 1], true));
        assert_eq!(ragged.values, [1, 2, 3, 4].map(Number::Whole));
        assert_eq!(read("[7,8]").lengths, [1, 1]);
        assert!(!read("[7,8]").nested && read("[[]]").nested);
        assert_eq!(read("[[[1],[2]],[[3],[4]]]").lengths, [2, 2]);
    }

    #[test]
    fn integers_keep_all_their_bits() {
        let numbers = read("[18446744073709551615, -9223372036854775808, 9007199254740993, 1.5]");
        let expected = [
            Number::Whole(u64::MAX),
            Number::Negative(i64::MIN),
            Number::Whole(9_007_199_254_740_993),
            Number::Float(1.5),
        ];
        assert_eq!(numbers.values, expected);
    }

    #[test]
    fn what_is_no_number_is_remembered_with_its_row() {
        assert_eq!(read("[[1],[2,\"x\",null]]").odd, Some((1, "the text \"x\"".into())));
        assert_eq!(read("[{\"b64\":\"\"}]").odd, Some((0, "an object".into())));
        assert!(serde_json::from_str::<Numbers>("7").is_err());
    }
}
