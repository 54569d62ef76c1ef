//! libsvm text: a label, an optional `qid:n`, then `index:value` pairs, one row per line; `#` starts a comment.
//!
//! The fields are `label`, `dense` if a range of indexes is declared dense, `ids` for all other indexes, and `qid`. The ids of a
//! batch have no values, so a pair outside the dense range only says whether its index is present: with value 0 it is not, with 1
//! it is, and any other value makes the line malformed, unless [`IdValues::Present`] allows dropping it. Dense indexes that a
//! line omits are 0; if an index occurs twice, the last value is used.

use openfleet_core::{Field, FieldKind, Schema};
use serde::{Deserialize, Serialize};

use super::number::{float, integer, unsigned};
use super::{
    FieldSelection, LabelKind, LineError, LineFormat, LineParser, Parsed, SlotKind, floats_of_dim, label_field, quote,
};
use crate::dataset::error::{Error, Result};
use crate::dataset::records::Records;

/// Which indexes are numbers and which are ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LibSvm {
    /// The first and last index of the field `dense`; `None` makes every index an id.
    pub dense: Option<[u64; 2]>,
    /// How the values of ids are interpreted.
    pub id_values: IdValues,
    /// The label is a number to approximate. Otherwise it is a class: positive if above 0, so both `-1 +1` and `0 1` work.
    pub regression: bool,
}

/// How the value of a pair outside the dense range is interpreted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdValues {
    /// It must be 0 or 1.
    #[default]
    ZeroOrOne,
    /// Any value but 0 means that the index is present.
    Present,
}

impl LibSvm {
    /// The fields `label`, `dense` if there is a dense range, and `ids`.
    pub fn schema(&self) -> Result<Schema> {
        let label = if self.regression { Field::new("label", FieldKind::Floats { dim: 1 }) } else { label_field() };
        let mut fields = vec![label];
        if let Some(dim) = self.dense_dim()? {
            fields.push(Field::new("dense", FieldKind::Floats { dim }));
        }
        fields.push(Field::new("ids", FieldKind::Ids));
        Schema::new(fields).map_err(|error| Error::bad_format(error.to_string(), ""))
    }

    fn dense_dim(&self) -> Result<Option<usize>> {
        let Some([first, last]) = self.dense else { return Ok(None) };
        if first > last || last - first >= 1 << 24 {
            let what =
                format!("`dense`: expected a first and a last index, at most 2^24 apart, got {first} and {last}");
            return Err(Error::bad_format(what, ""));
        }
        Ok(Some((last - first + 1) as usize))
    }

    pub(crate) fn resolve(&self, schema: &Schema) -> Result<Box<dyn LineFormat>> {
        let dim = self.dense_dim()?;
        let mut names: Vec<String> = ["label", "ids", "qid"].map(str::to_owned).to_vec();
        names.extend(dim.map(|_| "dense".to_owned()));
        let selection = FieldSelection::new(schema, names, "the libsvm fields")?;
        let mut resolved = Resolved {
            order: Vec::new(),
            label: None,
            qid: false,
            first: self.dense.map_or(0, |[first, _]| first),
            dim: dim.unwrap_or(0),
            dense: false,
            ids: None,
            id_values: self.id_values,
            regression: self.regression,
        };
        if let Some((position, kind)) = selection.get("label") {
            resolved.order.push(position);
            resolved.label = Some(LabelKind::of("label", kind)?);
        }
        if let Some((position, kind)) = selection.get("qid") {
            resolved.order.push(position);
            resolved.qid = true;
            if kind != (FieldKind::FixedIds { length: 1 }) {
                return Err(super::wrong_kind("qid", "exactly 1 integer", kind));
            }
        }
        if let Some((position, kind)) = dim.and_then(|_| selection.get("dense")) {
            resolved.order.push(position);
            resolved.dense = true;
            floats_of_dim("dense", kind, resolved.dim)?;
        }
        if let Some((position, kind)) = selection.get("ids") {
            resolved.order.push(position);
            resolved.ids = Some(SlotKind::of("ids", kind, false, "make it a slot of ids")?);
        }
        Ok(Box::new(resolved))
    }
}

struct Resolved {
    order: Vec<usize>,
    label: Option<LabelKind>,
    qid: bool,
    first: u64,
    dim: usize,
    dense: bool,
    ids: Option<SlotKind>,
    id_values: IdValues,
    regression: bool,
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
        let format = self.format;
        let line = memchr::memchr(b'#', line).map_or(line, |comment| &line[..comment]);
        let mut values = line.split(u8::is_ascii_whitespace).filter(|value| !value.is_empty()).peekable();
        let Some(label) = values.next() else { return Ok(Parsed::NotARow) };
        self.write_label(label, records)?;
        let qid = values.next_if(|value| value.starts_with(b"qid:"));
        if format.qid {
            match qid.and_then(|qid| integer(&qid[4..])) {
                Some((qid, [])) => records.push_key(qid),
                _ => {
                    let got = qid.or_else(|| values.peek().copied()).unwrap_or_default();
                    return Err(LineError::new("qid", "`qid:` and an integer", quote(got)));
                }
            }
        }
        if format.dense {
            records.push_zeros(format.dim);
        }
        let mut count = 0;
        for pair in values {
            let Some((index, value)) = read_pair(pair) else {
                return Err(LineError::new("ids", "an index, `:` and a finite number", quote(pair)));
            };
            let dense_index = index.wrapping_sub(format.first);
            if dense_index < format.dim as u64 {
                if format.dense {
                    records.last_floats(format.dim)[dense_index as usize] = value;
                }
            } else if let Some(slot) = format.ids.filter(|_| value != 0.0) {
                if slot.ragged && value != 1.0 && format.id_values == IdValues::ZeroOrOne {
                    let expected = "the value 0 or 1 (`id_values = \"present\"` drops others)";
                    return Err(LineError::new("ids", expected, quote(pair)));
                }
                records.push_key(index);
                count += 1;
            }
        }
        if let Some(slot) = format.ids {
            slot.end(count, records);
        }
        Ok(Parsed::Row)
    }
}

impl Parser<'_> {
    fn write_label(&self, text: &[u8], records: &mut Records) -> Result<(), LineError> {
        let Some(kind) = self.format.label else { return Ok(()) };
        // libsvm's own files write a positive label as `+1`.
        let Some((value, [])) = float(text.strip_prefix(b"+").unwrap_or(text)) else {
            return Err(LineError::new("label", "a finite number", quote(text)));
        };
        match kind {
            LabelKind::Float if self.format.regression => records.push_float(value),
            _ => kind.push_binary(value > 0.0, records),
        }
        Ok(())
    }
}

fn read_pair(pair: &[u8]) -> Option<(u64, f32)> {
    let (index, [b':', value @ ..]) = unsigned(pair)? else { return None };
    match float(value)? {
        (value, []) => Some((index, value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::super::testing::{line_error, parse};
    use super::*;
    use openfleet_core::Column;

    #[test]
    fn dense_indices_are_floats_and_the_others_ids() {
        let format = LibSvm { dense: Some([1, 3]), ..LibSvm::default() };
        let schema = format.schema().unwrap();
        let text = "+1 1:0.5 3:-2 17:1 0:1 9:0\n-1 qid:4 99:1 # a comment\n# only a comment\n0\n";
        let batch = parse(&Format::LibSvm(format), &schema, text).unwrap();
        assert_eq!(batch.columns[0], Column::Ids { offsets: vec![0, 1, 2, 3], keys: vec![1, 0, 0] });
        let values = vec![0.5, 0.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(batch.columns[1], Column::Floats { dim: 3, values });
        assert_eq!(batch.columns[2], Column::Ids { offsets: vec![0, 2, 3, 3], keys: vec![17, 0, 99] });
    }

    #[test]
    fn a_schema_may_ask_for_the_query_id_and_a_float_label() {
        let schema = Schema::new(vec![
            Field::new("qid", FieldKind::FixedIds { length: 1 }),
            Field::new("label", FieldKind::Floats { dim: 1 }),
        ])
        .unwrap();
        let format = Format::LibSvm(LibSvm { regression: true, ..LibSvm::default() });
        let batch = parse(&format, &schema, "2.5 qid:7 1:1").unwrap();
        assert_eq!(batch.columns[0], Column::Ids { offsets: vec![0, 1], keys: vec![7] });
        assert_eq!(batch.columns[1], Column::Floats { dim: 1, values: vec![2.5] });
        assert_eq!(line_error(&format, &schema, "1 1:1"), "qid: expected `qid:` and an integer, got `1:1`");
    }

    #[test]
    fn values_of_ids_are_dropped_only_on_request() {
        let strict = LibSvm::default();
        let schema = strict.schema().unwrap();
        assert_eq!(
            line_error(&Format::LibSvm(strict), &schema, "1 5:0.5"),
            "ids: expected the value 0 or 1 (`id_values = \"present\"` drops others), got `5:0.5`"
        );
        let lenient = LibSvm { id_values: IdValues::Present, ..LibSvm::default() };
        let batch = parse(&Format::LibSvm(lenient), &schema, "1 5:0.5 6:0").unwrap();
        assert_eq!(batch.columns[1], Column::Ids { offsets: vec![0, 1], keys: vec![5] });
    }

    #[test]
    fn each_malformed_line_says_what_was_expected() {
        let format = Format::LibSvm(LibSvm::default());
        let schema = LibSvm::default().schema().unwrap();
        let table = [
            ("yes 1:1", "label: expected a finite number, got `yes`"),
            ("1 5", "ids: expected an index, `:` and a finite number, got `5`"),
            ("1 5:", "ids: expected an index, `:` and a finite number, got `5:`"),
            ("1 5:1x", "ids: expected an index, `:` and a finite number, got `5:1x`"),
            ("1 -5:1", "ids: expected an index, `:` and a finite number, got `-5:1`"),
        ];
        for (line, expected) in table {
            assert_eq!(line_error(&format, &schema, line), expected, "{line}");
        }
    }
}
