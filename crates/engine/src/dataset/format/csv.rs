//! CSV: cells between separators, interpreted by a [`ColumnsSpec`].
//!
//! A line is split into cells once, then each field of the schema reads its cell. Quoted cells are copied into a buffer of the
//! parser; a file without quotes never uses it. The hash of a category is seeded with the slot's name, so a file with reordered
//! columns gives the same ids.

use std::collections::HashMap;
use std::sync::Arc;

use openfleet_core::{FieldKind, Key, Schema, key};

use super::cells::Cells;
use super::columns::{CategoricalColumn, ColumnsSpec, DenseColumn, IfMissing, LabelColumn};
use super::number::{float, integer};
use super::{FieldSelection, LabelKind, LineError, LineFormat, LineParser, Parsed, SlotKind, floats_of_dim, quote};
use crate::dataset::error::{Error, Result};
use crate::dataset::records::Records;

/// Comma-separated and similar files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Csv {
    /// The meaning of the columns.
    pub columns: ColumnsSpec,
}

impl Csv {
    pub(crate) fn resolve(&self, schema: &Schema) -> Result<Box<dyn LineFormat>> {
        Ok(Box::new(Resolved::new(&self.columns, schema)?))
    }
}

/// A description of columns that was checked against a schema.
pub(crate) struct Resolved {
    pub(crate) spec: ColumnsSpec,
    missing: Vec<Vec<u8>>,
    /// The columns that the fields below read. Their positions in a line are known once a file's column names are.
    pub(crate) columns: Vec<String>,
    fields: Vec<FieldSource>,
    pub(crate) order: Vec<usize>,
}

/// How a field is made. Columns are indexes into [`Resolved::columns`].
enum FieldSource {
    Label { column: usize, spec: LabelColumn, kind: LabelKind },
    Dense(Vec<Number>),
    Category { category: Category, kind: SlotKind },
    Cross { parts: Vec<Category>, seed: u32, buckets: Option<u64>, kind: SlotKind },
}

impl Resolved {
    /// Checks a description against the fields of a schema.
    pub(super) fn new(spec: &ColumnsSpec, schema: &Schema) -> Result<Self> {
        spec.check()?;
        if !spec.names.is_empty()
            && let Some((column, expected)) = spec.first_mismatch(&spec.names)
        {
            return Err(Error::bad_format(format!("column `{column}`: expected {expected} among `names`"), ""));
        }
        let available = spec.schema()?.fields().iter().map(|field| field.name.clone()).collect();
        let selection = FieldSelection::new(schema, available, "the column description")?;
        let mut resolved = Resolved {
            missing: spec.missing.iter().map(|text| text.clone().into_bytes()).collect(),
            spec: spec.clone(),
            columns: Vec::new(),
            fields: Vec::new(),
            order: Vec::new(),
        };
        if let Some((position, kind)) = spec.label.as_ref().and_then(|_| selection.get("label")) {
            resolved.order.push(position);
            resolved.push_label(kind)?;
        }
        if let Some((position, kind)) = (!spec.dense.is_empty()).then(|| selection.get("dense")).flatten() {
            resolved.order.push(position);
            floats_of_dim("dense", kind, spec.dense.len())?;
            let dense = spec.dense.iter().map(|column| Number::new(resolved.use_column(&column.column), column));
            let dense = dense.collect();
            resolved.fields.push(FieldSource::Dense(dense));
        }
        for column in &spec.categorical {
            if let Some((position, kind)) = selection.get(column.slot()) {
                resolved.order.push(position);
                let always_one = column.multi.is_none() && column.if_missing == IfMissing::OwnId;
                let kind = SlotKind::of(column.slot(), kind, always_one, "set `if_missing = \"own_id\"`")?;
                let category = Category::new(resolved.use_column(&column.column), column);
                resolved.fields.push(FieldSource::Category { category, kind });
            }
        }
        for cross in &spec.crosses {
            let slot = cross.slot();
            if let Some((position, kind)) = selection.get(&slot) {
                resolved.order.push(position);
                let kind = SlotKind::of(&slot, kind, false, "make it a slot of ids")?;
                let parts = cross.parts().iter().map(|part| resolved.cross_part(part)).collect();
                let seed = slot_number(&slot);
                resolved.fields.push(FieldSource::Cross { parts, seed, buckets: cross.buckets(), kind });
            }
        }
        Ok(resolved)
    }

    fn use_column(&mut self, name: &str) -> usize {
        self.columns.iter().position(|known| known == name).unwrap_or_else(|| {
            self.columns.push(name.to_owned());
            self.columns.len() - 1
        })
    }

    fn push_label(&mut self, kind: FieldKind) -> Result<()> {
        let Some(spec) = self.spec.label.clone() else { return Ok(()) };
        let kind = LabelKind::of("label", kind)?;
        let column = self.use_column(&spec.column);
        self.fields.push(FieldSource::Label { column, spec, kind });
        Ok(())
    }

    /// A part of a cross: a slot by its name, else the text of a column.
    fn cross_part(&mut self, part: &str) -> Category {
        let slot = self.spec.categorical.iter().find(|column| column.slot() == part).cloned();
        let column = slot.unwrap_or_else(|| CategoricalColumn { column: part.to_owned(), ..Default::default() });
        Category::new(self.use_column(&column.column), &column)
    }

    /// The position of each used column among a file's columns.
    fn positions(&self, names: &[String]) -> Vec<usize> {
        // A missing column was reported before, by `first_mismatch`.
        self.columns.iter().filter_map(|column| names.iter().position(|name| name == column)).collect()
    }
}

impl LineFormat for Resolved {
    fn order(&self) -> &[usize] {
        &self.order
    }

    fn parser(&self) -> Box<dyn LineParser + '_> {
        Box::new(Parser {
            format: self,
            header_ahead: self.spec.has_header(),
            width: self.spec.names.len(),
            positions: self.positions(&self.spec.names),
            cells: Cells::new(&self.spec),
        })
    }
}

struct Parser<'a> {
    format: &'a Resolved,
    header_ahead: bool,
    /// Cells per line.
    width: usize,
    positions: Vec<usize>,
    cells: Cells<'a>,
}

impl LineParser for Parser<'_> {
    fn parse(&mut self, line: &[u8], records: &mut Records) -> Result<Parsed, LineError> {
        let spec = &self.format.spec;
        if spec.comment.is_some_and(|comment| line.first() == Some(&(comment as u8))) {
            return Ok(Parsed::NotARow);
        }
        self.cells.split(line)?;
        if self.header_ahead {
            self.header_ahead = false;
            if spec.names.is_empty() {
                self.read_header(line).map_err(|error| LineError { fatal: true, ..error })?;
            }
            return Ok(Parsed::NotARow);
        }
        if self.cells.ranges.len() != self.width {
            return Err(LineError::whole_line(
                format!("{} columns separated by {}", self.width, quote(&[self.cells.separator])),
                self.cells.ranges.len().to_string(),
            ));
        }
        let row = Row { text: self.cells.text(line), parser: self };
        for field in &self.format.fields {
            row.write(field, records)?;
        }
        Ok(Parsed::Row)
    }
}

impl Parser<'_> {
    fn read_header(&mut self, line: &[u8]) -> Result<(), LineError> {
        let text = self.cells.text(line);
        let names: Vec<String> = (self.cells.ranges.iter())
            .map(|&(start, end)| String::from_utf8_lossy(&text[start as usize..end as usize]).into_owned())
            .collect();
        if let Some((column, expected)) = self.format.spec.first_mismatch(&names) {
            return Err(LineError::new(&column, expected, format!("the header {}", quote(line))));
        }
        self.positions = self.format.positions(&names);
        self.width = names.len();
        Ok(())
    }
}

/// Writes rows whose cells do not come from a line: those of [`Resolved::columns`], in their order.
#[cfg(feature = "arrow")]
pub(crate) struct CellWriter<'a> {
    parser: Parser<'a>,
    text: Vec<u8>,
}

#[cfg(feature = "arrow")]
impl<'a> CellWriter<'a> {
    pub(crate) fn new(format: &'a Resolved) -> Self {
        let positions = (0..format.columns.len()).collect();
        let cells = Cells::new(&format.spec);
        CellWriter { parser: Parser { format, header_ahead: false, width: 0, positions, cells }, text: Vec::new() }
    }

    /// Begins the next row.
    pub(crate) fn begin(&mut self) {
        self.text.clear();
        self.parser.cells.ranges.clear();
    }

    /// Adds the next cell: the text that `write` appends, or no value if it appends nothing.
    pub(crate) fn push<E>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let start = self.text.len();
        write(&mut self.text)?;
        self.parser.cells.ranges.push((start as u32, self.text.len() as u32));
        Ok(())
    }

    /// Writes the row into `records`, without committing it.
    pub(crate) fn write(&self, records: &mut Records) -> Result<(), LineError> {
        let row = Row { text: &self.text, parser: &self.parser };
        self.parser.format.fields.iter().try_for_each(|field| row.write(field, records))
    }
}

/// One line, split into cells.
struct Row<'a> {
    text: &'a [u8],
    parser: &'a Parser<'a>,
}

impl Row<'_> {
    fn write(&self, field: &FieldSource, records: &mut Records) -> Result<(), LineError> {
        match field {
            FieldSource::Label { column, spec, kind } => self.write_label(*column, spec, *kind, records),
            FieldSource::Dense(numbers) => {
                for number in numbers {
                    let value = self.cell(number.column).map_or(Ok(0.0), |cell| number.read(cell))?;
                    records.push_float(value);
                }
                Ok(())
            }
            FieldSource::Category { category, kind } => {
                let count = match (self.cell(category.column), category.multi) {
                    (Some(cell), None) => {
                        records.push_key(category.id(cell)?);
                        1
                    }
                    (Some(cell), Some(separator)) => {
                        let mut count = 0;
                        for part in cell.split(|&byte| byte == separator) {
                            let part = if self.parser.format.spec.trim { part.trim_ascii() } else { part };
                            if !self.is_missing(part) {
                                records.push_key(category.id(part)?);
                                count += 1;
                            }
                        }
                        count
                    }
                    (None, _) => category.missing.map_or(0, |id| {
                        records.push_key(category.modulo(id));
                        1
                    }),
                };
                kind.end(count, records);
                Ok(())
            }
            FieldSource::Cross { parts, seed, buckets, kind } => {
                // At most 8 parts: `ColumnsSpec::check`.
                let mut bytes = [0u8; 8 * 8];
                let mut length = 0;
                for part in parts {
                    let id = match self.cell(part.column) {
                        Some(cell) => part.whole_id(cell)?,
                        None => match part.missing {
                            Some(id) => id,
                            None => {
                                kind.end(0, records);
                                return Ok(());
                            }
                        },
                    };
                    bytes[length..length + 8].copy_from_slice(&id.to_le_bytes());
                    length += 8;
                }
                let id = key::of_category(*seed, &bytes[..length]);
                records.push_key(buckets.map_or(id, |buckets| id % buckets));
                kind.end(1, records);
                Ok(())
            }
        }
    }

    fn write_label(
        &self,
        column: usize,
        spec: &LabelColumn,
        kind: LabelKind,
        records: &mut Records,
    ) -> Result<(), LineError> {
        let cell = self.cell(column).unwrap_or_default();
        let is_one_of = |texts: &[String]| texts.iter().any(|text| text.as_bytes() == cell);
        if !spec.positive.is_empty() {
            let positive = is_one_of(&spec.positive);
            let unknown = !spec.negative.is_empty() && !is_one_of(&spec.negative);
            if !positive && (cell.is_empty() || unknown) {
                let known: Vec<String> =
                    spec.positive.iter().chain(&spec.negative).map(|text| format!("`{text}`")).collect();
                let others = if spec.negative.is_empty() { " or another text" } else { "" };
                return Err(LineError::new("label", format!("{}{others}", known.join(", ")), quote(cell)));
            }
            kind.push_binary(positive, records);
            return Ok(());
        }
        match kind {
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

    /// The text of a column, or `None` if it has no value.
    #[inline]
    fn cell(&self, column: usize) -> Option<&[u8]> {
        let (start, end) = self.parser.cells.ranges[self.parser.positions[column]];
        let cell = &self.text[start as usize..end as usize];
        (!self.is_missing(cell)).then_some(cell)
    }

    #[inline]
    fn is_missing(&self, cell: &[u8]) -> bool {
        cell.is_empty() || self.parser.format.missing.iter().any(|text| text == cell)
    }
}

/// A dense column.
struct Number {
    column: usize,
    spec: DenseColumn,
    scale: f32,
}

impl Number {
    fn new(column: usize, spec: &DenseColumn) -> Self {
        Number { column, scale: 1.0 / spec.std.unwrap_or(1.0), spec: spec.clone() }
    }

    fn read(&self, cell: &[u8]) -> Result<f32, LineError> {
        let Some((value, [])) = float(cell) else {
            return Err(LineError::new(&self.spec.column, "a finite number", quote(cell)));
        };
        let value = if self.spec.log { value.max(0.0).ln_1p() } else { value };
        Ok((value - self.spec.mean) * self.scale)
    }
}

/// A categorical column: converts text to an id.
struct Category {
    column: usize,
    slot: String,
    seed: u32,
    buckets: Option<u64>,
    coding: Coding,
    multi: Option<u8>,
    /// The id of a missing category before the modulo; `None` if it gets no id.
    missing: Option<Key>,
}

enum Coding {
    Hash,
    Vocabulary(Arc<HashMap<Vec<u8>, Key>>),
    Boundaries(Vec<f32>),
}

impl Category {
    fn new(column: usize, spec: &CategoricalColumn) -> Self {
        let seed = slot_number(spec.slot());
        let (coding, missing) = match (&spec.vocabulary, &spec.boundaries) {
            (Some(texts), _) => {
                let ids = texts.iter().zip(0..).map(|(text, id)| (text.clone().into_bytes(), id)).collect();
                (Coding::Vocabulary(Arc::new(ids)), texts.len() as Key)
            }
            (None, Some(values)) => (Coding::Boundaries(values.clone()), values.len() as Key + 1),
            (None, None) => (Coding::Hash, key::of_category(seed, b"")),
        };
        Category {
            column,
            slot: spec.slot().to_owned(),
            seed,
            buckets: spec.buckets,
            coding,
            multi: spec.multi.map(|separator| separator as u8),
            missing: (spec.if_missing == IfMissing::OwnId).then_some(missing),
        }
    }

    fn id(&self, text: &[u8]) -> Result<Key, LineError> {
        Ok(self.modulo(self.whole_id(text)?))
    }

    fn modulo(&self, id: Key) -> Key {
        self.buckets.map_or(id, |buckets| id % buckets)
    }

    /// The id before the modulo.
    fn whole_id(&self, text: &[u8]) -> Result<Key, LineError> {
        match &self.coding {
            Coding::Hash => Ok(key::of_category(self.seed, text)),
            Coding::Vocabulary(ids) => Ok(ids.get(text).copied().unwrap_or(ids.len() as Key)),
            Coding::Boundaries(values) => match float(text) {
                Some((number, [])) => Ok(values.partition_point(|&boundary| boundary <= number) as Key),
                _ => Err(LineError::new(&self.slot, "a finite number", quote(text))),
            },
        }
    }
}

/// The seed of a slot's hash. It depends on the slot's name and not on its position, so columns may be added before it.
fn slot_number(slot: &str) -> u32 {
    key::of_category(0, slot.as_bytes()) as u32
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::super::testing::{line_error, parse};
    use super::*;
    use openfleet_core::{Batch, Column};

    fn csv(text: &str) -> (Format, Schema) {
        let columns: ColumnsSpec = toml::from_str(text).unwrap();
        let schema = columns.schema().unwrap();
        (Format::Csv(Csv { columns }), schema)
    }

    fn column<'a>(batch: &'a Batch, schema: &Schema, name: &str) -> &'a Column {
        &batch.columns[schema.position(name).unwrap()]
    }

    fn keys<'a>(batch: &'a Batch, schema: &Schema, name: &str) -> &'a [Key] {
        let Column::Ids { keys, .. } = column(batch, schema, name) else { panic!("not ids") };
        keys
    }

    fn hashed(slot: &str, text: &str) -> Key {
        key::of_category(slot_number(slot), text.as_bytes())
    }

    #[test]
    fn columns_are_found_by_the_header_of_each_file() {
        let (format, schema) = csv("label = { column = \"y\" }\ncategorical = [{ column = \"c\" }]\nignore = [\"*\"]");
        let batch = parse(&format, &schema, "c,other,y\nred,x,1\nblue,x,0\n").unwrap();
        assert_eq!(keys(&batch, &schema, "label"), [1, 0]);
        assert_eq!(keys(&batch, &schema, "c"), [hashed("c", "red"), hashed("c", "blue")]);
    }

    #[test]
    fn census_income_lines_become_rows() {
        let (format, schema) = csv(r#"
            names = ["age", "workclass", "hours", "label"]
            missing = ["?"]
            label = { column = "label", positive = [">50K", ">50K."], negative = ["<=50K", "<=50K."] }
            dense = [{ column = "age", mean = 30.0, std = 10.0 }, { column = "hours", log = true }]
            crosses = [["workclass", "age_group"]]
            [[categorical]]
            column = "workclass"
            [[categorical]]
            column = "age"
            name = "age_group"
            boundaries = [18, 25, 40]
        "#);
        let text = "39, State-gov, 40, <=50K\n25, ?, ?, >50K.\n";
        let batch = parse(&format, &schema, text).unwrap();
        assert_eq!(keys(&batch, &schema, "label"), [0, 1]);
        let Column::Floats { values, .. } = column(&batch, &schema, "dense") else { unreachable!() };
        assert_eq!(values.as_slice(), [9.0 * 0.1, 40f32.ln_1p(), -0.5, 0.0]);
        // `?` is missing: an empty slot, and no cross.
        let state_gov = hashed("workclass", "State-gov");
        let expected = Column::Ids { offsets: vec![0, 1, 1], keys: vec![state_gov] };
        assert_eq!(column(&batch, &schema, "workclass"), &expected);
        // 39 is below 40 only, 25 has reached the boundary 25.
        assert_eq!(keys(&batch, &schema, "age_group"), [2, 2]);
        let crossed = [state_gov.to_le_bytes(), 2u64.to_le_bytes()].concat();
        let cross = key::of_category(slot_number("workclass_x_age_group"), &crossed);
        assert_eq!(keys(&batch, &schema, "workclass_x_age_group"), [cross]);
        assert_eq!(
            line_error(&format, &schema, "39, Private, 40, >50k"),
            "label: expected `>50K`, `>50K.`, `<=50K`, `<=50K.`, got `>50k`"
        );
    }

    #[test]
    fn vocabularies_number_their_texts_and_map_unknown_ones() {
        let (format, schema) = csv(r#"
            names = ["a", "b"]
            categorical = [
                { column = "a", vocabulary = ["red", "blue"] },
                { column = "b", vocabulary = ["x"], multi = "|", if_missing = "own_id" },
            ]
        "#);
        let batch = parse(&format, &schema, "blue,x|y| x\ngreen,\nred,|\n").unwrap();
        assert_eq!(keys(&batch, &schema, "a"), [1, 2, 0]);
        let expected = Column::Ids { offsets: vec![0, 3, 4, 4], keys: vec![0, 1, 0, 1] };
        assert_eq!(column(&batch, &schema, "b"), &expected);
    }

    #[test]
    fn quotes_hide_separators_and_doubled_quotes_are_one() {
        let (format, schema) = csv("names = [\"a\", \"b\"]\ncategorical = [{ column = \"a\" }, { column = \"b\" }]");
        let text = "\"x, y\", \"say \"\"hi\"\"\" \nplain,\" spaced \"\n\"\",z\n";
        let batch = parse(&format, &schema, text).unwrap();
        assert_eq!(keys(&batch, &schema, "a"), [hashed("a", "x, y"), hashed("a", "plain")]);
        let texts = ["say \"hi\"", " spaced ", "z"];
        assert_eq!(keys(&batch, &schema, "b"), texts.map(|text| hashed("b", text)));
        let line = "\"open,b";
        assert_eq!(line_error(&format, &schema, line), "expected a closing `\"` on the same line, got `\\\"open,b`");
        assert_eq!(line_error(&format, &schema, "\"a\"b,c"), "expected `,` after a quoted cell, got `b,c`");
    }

    #[test]
    fn runs_of_blanks_separate_when_the_separator_is_a_blank() {
        let (format, schema) = csv(r#"
            separator = " "
            names = ["a", "b", "y"]
            label = { column = "y", regression = true }
            dense = [{ column = "a" }, { column = "b" }]
        "#);
        let batch = parse(&format, &schema, "  0.5   18.00 24.0\n").unwrap();
        assert_eq!(column(&batch, &schema, "label"), &Column::Floats { dim: 1, values: vec![24.0] });
        assert_eq!(column(&batch, &schema, "dense"), &Column::Floats { dim: 2, values: vec![0.5, 18.0] });
    }

    #[test]
    fn each_malformed_line_says_column_expected_and_got() {
        let (format, schema) = csv(r#"
            names = ["a", "c", "y"]
            label = { column = "y" }
            dense = [{ column = "a" }]
            categorical = [{ column = "c", boundaries = [1.0] }]
        "#);
        let table = [
            ("1,2", "expected 3 columns separated by `,`, got 2"),
            ("1,2,1,1", "expected 3 columns separated by `,`, got 4"),
            ("x,2,1", "a: expected a finite number, got `x`"),
            ("1,x,1", "c: expected a finite number, got `x`"),
            ("1,2,", "label: expected an integer, got nothing"),
            ("1,2,0.5", "label: expected an integer, got `0.5`"),
        ];
        for (line, expected) in table {
            assert_eq!(line_error(&format, &schema, line), expected, "{line}");
        }
    }

    #[test]
    fn a_header_without_a_required_column_ends_the_file() {
        let (format, schema) = csv("label = { column = \"y\" }");
        let refusal = parse(&format, &schema, "x,z\n").unwrap_err();
        assert!(refusal.fatal);
        assert_eq!(refusal.slot.as_deref(), Some("y"));
        assert_eq!(line_error(&format, &schema, "x,z"), "y: expected a column of this name, got the header `x,z`");
    }

    #[test]
    fn comments_and_a_header_beside_names_are_not_rows() {
        let (format, schema) = csv("comment = \"|\"\nheader = true\nnames = [\"y\"]\nlabel = { column = \"y\" }");
        let batch = parse(&format, &schema, "|1x3 Cross validator\nlabel\n1\n").unwrap();
        assert_eq!(keys(&batch, &schema, "label"), [1]);
    }
}
