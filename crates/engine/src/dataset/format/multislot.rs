//! MultiSlot text: for each slot a count and that many values, separated by blanks, one row per line.
//!
//! ```text
//! 1 0  2 17 42  0  3 0.5 0.25 1     label = 0, two ids, no ids, three floats
//! ```
//!
//! The text has no names: the order tells slots apart. It is the order of the schema, unless the slots of the file are listed.
//! Then slots that the schema does not have are skipped, and the others are found by name.

use openfleet_core::{FieldKind, Schema};

use super::number::{float, integer, unsigned};
use super::{FieldSelection, LineError, LineFormat, LineParser, Parsed, plural, quote};
use crate::dataset::error::Result;
use crate::dataset::records::Records;

/// The slots of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MultiSlot {
    /// Their names in the order of the text; `None` means the schema's fields in the schema's order.
    pub slots: Option<Vec<String>>,
}

impl MultiSlot {
    /// Files with these slots in this order. A schema may use fewer.
    pub fn with_slots<S: Into<String>>(slots: impl IntoIterator<Item = S>) -> Self {
        MultiSlot { slots: Some(slots.into_iter().map(Into::into).collect()) }
    }

    pub(crate) fn resolve(&self, schema: &Schema) -> Result<Box<dyn LineFormat>> {
        let names = match &self.slots {
            Some(names) => names.clone(),
            None => schema.fields().iter().map(|field| field.name.clone()).collect(),
        };
        let selection = FieldSelection::new(schema, names.clone(), "the file's slots")?;
        let mut resolved = Resolved { slots: Vec::with_capacity(names.len()), order: Vec::new() };
        for name in names {
            // A name listed twice would be written twice.
            let field = selection.get(&name).filter(|(position, _)| !resolved.order.contains(position));
            if let Some((position, _)) = field {
                resolved.order.push(position);
            }
            resolved.slots.push(Slot { name, kind: field.map(|(_, kind)| kind) });
        }
        Ok(Box::new(resolved))
    }
}

struct Resolved {
    slots: Vec<Slot>,
    order: Vec<usize>,
}

struct Slot {
    name: String,
    /// `None` if the schema does not have the slot.
    kind: Option<FieldKind>,
}

impl LineFormat for Resolved {
    fn order(&self) -> &[usize] {
        &self.order
    }

    fn parser(&self) -> Box<dyn LineParser + '_> {
        Box::new(Parser { slots: &self.slots })
    }
}

struct Parser<'a> {
    slots: &'a [Slot],
}

impl LineParser for Parser<'_> {
    fn parse(&mut self, line: &[u8], records: &mut Records) -> Result<Parsed, LineError> {
        let mut rest = line;
        for slot in self.slots {
            let at = skip_blanks(rest);
            let Some((count, after)) = unsigned(at).filter(|(_, after)| ends_value(after)) else {
                return Err(bad_count(slot, at));
            };
            rest = match slot.kind {
                Some(FieldKind::Ids) => {
                    let rest = read_ids(slot, count, after, records)?;
                    records.push_length(count as usize);
                    rest
                }
                Some(FieldKind::FixedIds { length }) if count == length as u64 => {
                    read_ids(slot, count, after, records)?
                }
                Some(FieldKind::Floats { dim }) if count == dim as u64 => read_floats(slot, count, after, records)?,
                Some(kind) => return Err(wrong_count(slot, kind, count)),
                None => skip_values(slot, count, after)?,
            };
        }
        let trailing = skip_blanks(rest);
        if trailing.is_empty() { Ok(Parsed::Row) } else { Err(trailing_text(self.slots, trailing)) }
    }
}

#[inline(always)]
fn read_ids<'a>(slot: &Slot, count: u64, text: &'a [u8], records: &mut Records) -> Result<&'a [u8], LineError> {
    let mut rest = text;
    for read in 0..count {
        let at = skip_blanks(rest);
        match integer(at) {
            Some((id, after)) if ends_value(after) => {
                records.push_key(id);
                rest = after;
            }
            _ => return Err(bad_value(slot, "an integer of 64 bits", "id", read, count, at)),
        }
    }
    Ok(rest)
}

#[inline(always)]
fn read_floats<'a>(slot: &Slot, count: u64, text: &'a [u8], records: &mut Records) -> Result<&'a [u8], LineError> {
    let mut rest = text;
    for read in 0..count {
        let at = skip_blanks(rest);
        match float(at) {
            Some((value, after)) if ends_value(after) => {
                records.push_float(value);
                rest = after;
            }
            _ => return Err(bad_value(slot, "a finite number", "float", read, count, at)),
        }
    }
    Ok(rest)
}

fn skip_values<'a>(slot: &Slot, count: u64, text: &'a [u8]) -> Result<&'a [u8], LineError> {
    let mut rest = text;
    for read in 0..count {
        let at = skip_blanks(rest);
        let length = value(at).len();
        if length == 0 {
            return Err(bad_value(slot, "", "value", read, count, at));
        }
        rest = &at[length..];
    }
    Ok(rest)
}

#[inline(always)]
fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

#[inline(always)]
fn skip_blanks(mut text: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = text
        && is_blank(*first)
    {
        text = rest;
    }
    text
}

#[inline(always)]
fn ends_value(rest: &[u8]) -> bool {
    rest.first().is_none_or(|&byte| is_blank(byte))
}

/// The text up to the next blank.
fn value(text: &[u8]) -> &[u8] {
    let length = text.iter().position(|&byte| is_blank(byte)).unwrap_or(text.len());
    &text[..length]
}

#[cold]
fn bad_count(slot: &Slot, at: &[u8]) -> LineError {
    let got = if at.is_empty() { "the end of the line".to_owned() } else { quote(value(at)) };
    LineError::new(&slot.name, "a count of values", got)
}

#[cold]
fn wrong_count(slot: &Slot, kind: FieldKind, got: u64) -> LineError {
    LineError::new(&slot.name, super::kind_name(kind), format!("a count of {got}"))
}

#[cold]
fn bad_value(slot: &Slot, expected: &str, noun: &str, read: u64, count: u64, at: &[u8]) -> LineError {
    if at.is_empty() {
        let expected = format!("{count} {}", plural(count as usize, noun));
        return LineError::new(&slot.name, expected, format!("{read} and the end of the line"));
    }
    LineError::new(&slot.name, expected, quote(value(at)))
}

#[cold]
fn trailing_text(slots: &[Slot], at: &[u8]) -> LineError {
    let expected = match slots.last() {
        Some(slot) => format!("the end of the line after slot `{}`", slot.name),
        None => "an empty line".to_owned(),
    };
    LineError::whole_line(expected, quote(value(at)))
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::super::testing::{line_error, parse};
    use super::*;
    use openfleet_core::{Column, Field};
    use proptest::prelude::*;

    fn schema() -> Schema {
        Schema::new(vec![
            Field::new("label", FieldKind::FixedIds { length: 1 }),
            Field::new("words", FieldKind::Ids),
            Field::new("dense", FieldKind::Floats { dim: 2 }),
        ])
        .unwrap()
    }

    fn format() -> Format {
        Format::MultiSlot(MultiSlot::default())
    }

    #[test]
    fn id_0_empty_slots_and_negative_ids_are_legal() {
        let batch = parse(&format(), &schema(), "1 1 3 0 -1 7 2 0.5 -2e3\n1 0 0 2 1 .25\n").unwrap();
        assert_eq!(batch.columns[0], Column::Ids { offsets: vec![0, 1, 2], keys: vec![1, 0] });
        assert_eq!(batch.columns[1], Column::Ids { offsets: vec![0, 3, 3], keys: vec![0, u64::MAX, 7] });
        assert_eq!(batch.columns[2], Column::Floats { dim: 2, values: vec![0.5, -2000.0, 1.0, 0.25] });
    }

    #[test]
    fn any_run_of_blanks_separates() {
        let batch = parse(&format(), &schema(), "  1 1\t1  5   2\t0 0  ").unwrap();
        assert_eq!(batch.columns[1], Column::Ids { offsets: vec![0, 1], keys: vec![5] });
    }

    #[test]
    fn each_malformed_line_says_slot_expected_and_got() {
        // line, error
        let table = [
            // garbage where a number belongs
            ("1 x 1 5 2 0 0", "label: expected an integer of 64 bits, got `x`"),
            ("1 1 2 5 5a 2 0 0", "words: expected an integer of 64 bits, got `5a`"),
            ("1 1 1 1.5 2 0 0", "words: expected an integer of 64 bits, got `1.5`"),
            ("1 1 1 5 2 0 zero", "dense: expected a finite number, got `zero`"),
            ("1 1 1 5 2 0 nan", "dense: expected a finite number, got `nan`"),
            // an id of more than 64 bits
            ("1 1 1 18446744073709551616 2 0 0", "words: expected an integer of 64 bits, got `18446744073709551616`"),
            // garbage where a count belongs
            ("1 1 -1 5 2 0 0", "words: expected a count of values, got `-1`"),
            ("1 1 one 5 2 0 0", "words: expected a count of values, got `one`"),
            // a fixed field of another length
            ("2 1 0 1 5 2 0 0", "label: expected exactly 1 integer, got a count of 2"),
            ("1 1 1 5 3 0 0 0", "dense: expected exactly 2 floats, got a count of 3"),
            ("0 1 5 2 0 0", "label: expected exactly 1 integer, got a count of 0"),
            // a line cut short: within a slot, and between slots
            ("1 1 4 5 6", "words: expected 4 ids, got 2 and the end of the line"),
            ("1 1 1 5 2 0.5", "dense: expected 2 floats, got 1 and the end of the line"),
            ("1 1 1 5", "dense: expected a count of values, got the end of the line"),
            ("1 1 99999999999 5", "words: expected 99999999999 ids, got 1 and the end of the line"),
            // text after the last slot
            ("1 1 1 5 2 0 0 9 9", "expected the end of the line after slot `dense`, got `9`"),
        ];
        for (line, expected) in table {
            assert_eq!(line_error(&format(), &schema(), line), expected, "{line}");
        }
    }

    #[test]
    fn slots_that_the_schema_does_not_have_are_skipped() {
        let format = Format::MultiSlot(MultiSlot::with_slots(["ins_id", "dense", "other", "words", "label"]));
        let batch = parse(&format, &schema(), "1 abc 2 1 2 3 x y z 1 9 1 1").unwrap();
        assert_eq!(batch.columns[0], Column::Ids { offsets: vec![0, 1], keys: vec![1] });
        assert_eq!(batch.columns[1], Column::Ids { offsets: vec![0, 1], keys: vec![9] });
        assert_eq!(batch.columns[2], Column::Floats { dim: 2, values: vec![1.0, 2.0] });
        assert_eq!(
            line_error(&format, &schema(), "1 abc 2 1 2 3 x"),
            "other: expected 3 values, got 1 and the end of the line"
        );
    }

    #[test]
    fn a_slot_absent_from_the_files_is_an_error() {
        let format = Format::MultiSlot(MultiSlot::with_slots(["label", "word", "dense"]));
        let error = format.resolve(&schema()).err().unwrap();
        assert_eq!(error.to_string(), "slot `words` is not in the file's slots");
    }

    proptest! {
        #[test]
        fn rows_written_as_text_come_back(
            rows in proptest::collection::vec(
                (any::<i64>(), proptest::collection::vec(any::<u64>(), 0..300), any::<[i32; 2]>()), 1..20)
        ) {
            let mut text = String::new();
            for (label, words, dense) in &rows {
                let words: String = words.iter().map(|word| format!(" {word}")).collect();
                let count = words.split_whitespace().count();
                let dense = dense.map(|bits| bits as f32 / 1024.0);
                text += &format!("1 {label} {count}{words} 2 {} {:e}\n", dense[0], dense[1]);
            }
            let batch = parse(&format(), &schema(), &text).unwrap();
            let mut expected = openfleet_core::Batch::new(&schema());
            for (label, words, dense) in &rows {
                expected.columns[0].push_ids(&[*label as u64]);
                expected.columns[1].push_ids(words);
                expected.columns[2].push_floats(&dense.map(|bits| bits as f32 / 1024.0));
            }
            expected.rows = rows.len();
            prop_assert_eq!(batch, expected);
        }
    }
}
