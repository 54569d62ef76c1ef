//! Criteo's display-advertising text: a label, 13 numbers and 26 categories, separated by tabs.
//!
//! The fields are `label`, `dense` (13 floats) and `C1` to `C26`. A category's id is the stable hash of its text, seeded with its
//! slot's number (1 for `C1`), so a file gives the same ids on every machine and in every process. Fields that the schema does
//! not have are skipped.

use openfleet_core::{Field, FieldKind, Schema, key};
use serde::{Deserialize, Serialize};

use super::number::{float, integer};
use super::{
    FieldSelection, LabelKind, LineError, LineFormat, LineParser, Parsed, SlotKind, floats_of_dim, label_field, quote,
};
use crate::dataset::error::{Error, Result};
use crate::dataset::records::Records;

const DENSE: usize = 13;
const CATEGORIES: usize = 26;
const COLUMNS: usize = 1 + DENSE + CATEGORIES;

/// How numbers and categories are converted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Criteo {
    /// The transformation of each of the 13 numbers.
    pub dense: DenseTransform,
    /// Ids are taken modulo this; `None` uses all 64 bits of the hash.
    pub buckets: Option<u64>,
    /// Which id an empty category gets.
    pub empty: EmptyCategory,
}

/// The transformation of a number before training. A missing number is 0 before and after.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DenseTransform {
    /// No transformation.
    #[default]
    None,
    /// `ln(1 + max(x, 0))`: counts over several magnitudes become comparable.
    Log,
}

/// Which id a row without a category gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EmptyCategory {
    /// No id: an empty slot.
    #[default]
    NoId,
    /// The hash of the empty text, like any other category.
    Hash,
}

impl Criteo {
    /// All fields: `label`, `dense`, `C1` to `C26`.
    pub fn schema(&self) -> Schema {
        let mut fields = vec![label_field(), Field::new("dense", FieldKind::Floats { dim: DENSE })];
        fields.extend((1..=CATEGORIES).map(|slot| Field::new(format!("C{slot}"), FieldKind::Ids)));
        match Schema::new(fields) {
            Ok(schema) => schema,
            Err(_) => unreachable!("these names are distinct"),
        }
    }

    pub(crate) fn resolve(&self, schema: &Schema) -> Result<Box<dyn LineFormat>> {
        if self.buckets == Some(0) {
            return Err(Error::bad_format("`buckets` is 0", "leave it out for all 64 bits of the hash"));
        }
        let names = self.schema().fields().iter().map(|field| field.name.clone()).collect();
        let selection = FieldSelection::new(schema, names, "Criteo's columns")?;
        let mut resolved =
            Resolved { format: self.clone(), order: Vec::new(), label: None, dense: false, slots: [None; CATEGORIES] };
        if let Some((position, kind)) = selection.get("label") {
            resolved.order.push(position);
            resolved.label = Some(LabelKind::of("label", kind)?);
        }
        if let Some((position, kind)) = selection.get("dense") {
            resolved.order.push(position);
            floats_of_dim("dense", kind, DENSE)?;
            resolved.dense = true;
        }
        for (index, slot) in resolved.slots.iter_mut().enumerate() {
            let name = format!("C{}", index + 1);
            if let Some((position, kind)) = selection.get(&name) {
                resolved.order.push(position);
                let always_one = self.empty == EmptyCategory::Hash;
                *slot = Some(SlotKind::of(&name, kind, always_one, "hash empty categories, or make it a slot of ids")?);
            }
        }
        Ok(Box::new(resolved))
    }
}

struct Resolved {
    format: Criteo,
    order: Vec<usize>,
    label: Option<LabelKind>,
    dense: bool,
    slots: [Option<SlotKind>; CATEGORIES],
}

impl LineFormat for Resolved {
    fn order(&self) -> &[usize] {
        &self.order
    }

    fn parser(&self) -> Box<dyn LineParser + '_> {
        Box::new(Parser { format: self })
    }
}

struct Parser<'a> {
    format: &'a Resolved,
}

impl LineParser for Parser<'_> {
    fn parse(&mut self, line: &[u8], records: &mut Records) -> Result<Parsed, LineError> {
        let Resolved { format, label, dense, slots, .. } = self.format;
        let mut cells = TabCells { rest: Some(line) };

        let cell = cells.next().ok_or_else(|| too_few(line))?;
        if let Some(label) = label {
            push_label(*label, cell, records)?;
        }

        for index in 0..DENSE {
            let cell = cells.next().ok_or_else(|| too_few(line))?;
            if *dense {
                records.push_float(dense_value(format.dense, index, cell)?);
            }
        }

        for (index, slot) in slots.iter().enumerate() {
            let cell = cells.next().ok_or_else(|| too_few(line))?;
            let Some(slot) = slot else { continue };
            if cell.is_empty() && format.empty == EmptyCategory::NoId {
                slot.end(0, records);
                continue;
            }
            let id = key::of_category(index as u32 + 1, cell);
            records.push_key(format.buckets.map_or(id, |buckets| id % buckets));
            slot.end(1, records);
        }
        if cells.rest.is_none() { Ok(Parsed::Row) } else { Err(too_few(line)) }
    }
}

/// The cells of a line; `rest` is `None` after the last.
struct TabCells<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> TabCells<'a> {
    #[inline(always)]
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        match tab_position(rest) {
            Some(length) => {
                self.rest = Some(&rest[length + 1..]);
                Some(&rest[..length])
            }
            None => {
                self.rest = None;
                Some(rest)
            }
        }
    }
}

/// TabCells are short: comparing eight bytes at once finds most tabs, while a call to `memchr` costs more than the cell.
#[inline(always)]
fn tab_position(text: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = 0x8080_8080_8080_8080;
    let mut at = 0;
    while let Some((word, _)) = text[at..].split_first_chunk::<8>() {
        // A byte equal to the tab becomes 0; the subtraction then borrows into its high bit (the lowest such bit is exact).
        let zeroed = u64::from_le_bytes(*word) ^ (ONES * u64::from(b'\t'));
        let found = zeroed.wrapping_sub(ONES) & !zeroed & HIGHS;
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    text[at..].iter().position(|&byte| byte == b'\t').map(|found| at + found)
}

fn push_label(label: LabelKind, cell: &[u8], records: &mut Records) -> Result<(), LineError> {
    match label {
        LabelKind::Integer => match integer(cell) {
            Some((value, [])) => records.push_key(value),
            _ => return Err(LineError::new("label", "an integer", quote(cell))),
        },
        LabelKind::Float => match float(cell) {
            Some((value, [])) => records.push_float(value),
            _ => return Err(LineError::new("label", "a finite number", quote(cell))),
        },
    }
    Ok(())
}

#[inline(always)]
fn dense_value(transform: DenseTransform, index: usize, cell: &[u8]) -> Result<f32, LineError> {
    if cell.is_empty() {
        return Ok(0.0);
    }
    match (float(cell), transform) {
        (Some((value, [])), DenseTransform::None) => Ok(value),
        (Some((value, [])), DenseTransform::Log) => Ok(value.max(0.0).ln_1p()),
        _ => Err(LineError::new("dense", format!("a finite number or nothing as number {}", index + 1), quote(cell))),
    }
}

/// The error of a line with too few or too many columns.
#[cold]
fn too_few(line: &[u8]) -> LineError {
    let got = memchr::memchr_iter(b'\t', line).count() + 1;
    LineError::whole_line(format!("{COLUMNS} columns separated by tabs"), format!("{got}"))
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::super::testing::{line_error, parse};
    use super::*;
    use openfleet_core::Column;

    fn line(label: &str, dense: &[&str], categories: &[&str]) -> String {
        let mut dense = dense.to_vec();
        dense.resize(DENSE, "");
        let mut categories = categories.to_vec();
        categories.resize(CATEGORIES, "");
        format!("{label}\t{}\t{}", dense.join("\t"), categories.join("\t"))
    }

    fn ids(column: &Column) -> (&[u32], &[u64]) {
        let Column::Ids { offsets, keys } = column else { panic!("not ids") };
        (offsets, keys)
    }

    #[test]
    fn categories_are_hashed_with_their_slots_number_and_empty_ones_are_empty_slots() {
        let format = Criteo::default();
        let schema = format.schema();
        let text = line("1", &["5", "-3", "0.5"], &["68fd1e64", "68fd1e64"]);
        let batch = parse(&Format::Criteo(format), &schema, &text).unwrap();
        assert_eq!(ids(&batch.columns[0]).1, [1]);
        let Column::Floats { values, .. } = &batch.columns[1] else { unreachable!() };
        assert_eq!(values[..4], [5.0, -3.0, 0.5, 0.0]);
        assert_eq!(ids(&batch.columns[2]).1, [key::of_category(1, b"68fd1e64")]);
        assert_eq!(ids(&batch.columns[3]).1, [key::of_category(2, b"68fd1e64")]);
        assert_eq!(ids(&batch.columns[4]), ([0, 0].as_slice(), [].as_slice()));
    }

    #[test]
    fn options_take_the_logarithm_fold_the_ids_and_hash_the_empty_category() {
        let format = Criteo { dense: DenseTransform::Log, buckets: Some(1000), empty: EmptyCategory::Hash };
        let schema = Schema::new(vec![
            Field::new("C26", FieldKind::FixedIds { length: 1 }),
            Field::new("dense", FieldKind::Floats { dim: 13 }),
            Field::new("label", FieldKind::Floats { dim: 1 }),
        ])
        .unwrap();
        let batch = parse(&Format::Criteo(format), &schema, &line("0", &["1", "-3"], &[])).unwrap();
        assert_eq!(ids(&batch.columns[0]).1, [key::of_category(26, b"") % 1000]);
        let Column::Floats { values, .. } = &batch.columns[1] else { unreachable!() };
        assert_eq!(values[..3], [2f32.ln(), 0.0, 0.0]);
        assert_eq!(batch.columns[2], Column::Floats { dim: 1, values: vec![0.0] });
    }

    #[test]
    fn each_malformed_line_says_what_was_expected() {
        let format = Format::Criteo(Criteo::default());
        let schema = Criteo::default().schema();
        let bad_number = line("1", &["5", "x"], &[]);
        assert_eq!(
            line_error(&format, &schema, &bad_number),
            "dense: expected a finite number or nothing as number 2, got `x`"
        );
        assert_eq!(line_error(&format, &schema, &line("", &[], &[])), "label: expected an integer, got nothing");
        assert_eq!(line_error(&format, &schema, "1\t2\t3"), "expected 40 columns separated by tabs, got 3");
        let long = line("1", &[], &[]) + "\textra";
        assert_eq!(line_error(&format, &schema, &long), "expected 40 columns separated by tabs, got 41");
    }

    #[test]
    fn a_slot_of_exactly_one_id_needs_an_id_for_the_empty_category() {
        let schema = Schema::new(vec![Field::new("C1", FieldKind::FixedIds { length: 1 })]).unwrap();
        let error = Criteo::default().resolve(&schema).err().unwrap();
        assert_eq!(
            error.to_string(),
            "bad format description: slot `C1` has exactly 1 integer per row, but a row may have no value for it"
        );
    }

    #[test]
    fn tabs_are_found_at_every_position() {
        for length in 0..40 {
            for position in 0..length {
                let mut text = vec![0x89u8; length];
                text[position] = b'\t';
                assert_eq!(tab_position(&text), Some(position));
            }
            assert_eq!(tab_position(&vec![b'\n'; length]), None);
        }
    }
}
