//! Parses lines of text into rows: one file per format, next to the two traits that formats implement.
//!
//! A [`Format`] is what the user chose. `resolve` checks it once against a schema and returns a `LineFormat`, which opens one
//! `LineParser` per file. Parsers see one line at a time and return an error about a value. Their caller knows the file and line,
//! and decides whether to stop.

use openfleet_core::{Field, FieldKind, Schema};

use super::error::{Error, Result};
use super::records::Records;

mod cells;
pub mod columns;
pub mod criteo;
pub mod csv;
pub mod libsvm;
pub mod multislot;
mod number;
pub mod parquet;

pub use columns::{CategoricalColumn, ColumnsSpec};
pub use criteo::Criteo;
pub use csv::Csv;
pub use libsvm::LibSvm;
pub use multislot::MultiSlot;
pub use parquet::Parquet;

/// The format of a dataset's files.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant)] // one a dataset: a box would only get in the user's way
pub enum Format {
    /// For each slot a count and that many values, separated by blanks.
    MultiSlot(MultiSlot),
    /// Label, 13 numbers and 26 categories, separated by tabs.
    Criteo(Criteo),
    /// Cells between separators, described column by column.
    Csv(Csv),
    /// A label, then `index:value` pairs.
    LibSvm(LibSvm),
    /// Parquet and Arrow files, described column by column.
    Parquet(Parquet),
}

impl Format {
    /// The fields of this format by default; `None` for MultiSlot, whose text has no names.
    pub fn schema(&self) -> Result<Option<Schema>> {
        match self {
            Format::MultiSlot(_) => Ok(None),
            Format::Criteo(format) => Ok(Some(format.schema())),
            Format::Csv(format) => format.columns.schema().map(Some),
            Format::LibSvm(format) => format.schema().map(Some),
            Format::Parquet(format) => format.columns.schema().map(Some),
        }
    }

    /// Checks the format against the fields of the schema.
    pub(crate) fn resolve(&self, schema: &Schema) -> Result<ResolvedFormat> {
        let lines = match self {
            Format::MultiSlot(format) => format.resolve(schema)?,
            Format::Criteo(format) => format.resolve(schema)?,
            Format::Csv(format) => format.resolve(schema)?,
            Format::LibSvm(format) => format.resolve(schema)?,
            Format::Parquet(format) => return format.resolve(schema).map(ResolvedFormat::Columns),
        };
        Ok(ResolvedFormat::Lines(lines))
    }
}

/// A format that was checked against a schema.
pub(crate) enum ResolvedFormat {
    /// Lines of text.
    Lines(Box<dyn LineFormat>),
    /// Columns of a Parquet or Arrow file.
    Columns(Box<csv::Resolved>),
}

impl ResolvedFormat {
    /// Indexes of the schema's fields, in the order in which they are written.
    pub(crate) fn order(&self) -> &[usize] {
        match self {
            ResolvedFormat::Lines(format) => format.order(),
            ResolvedFormat::Columns(format) => &format.order,
        }
    }
}

/// A format that was resolved against a schema; all reader threads share it.
pub(crate) trait LineFormat: Send + Sync {
    /// Indexes of the schema's fields, in the order in which parsers write them.
    fn order(&self) -> &[usize];

    /// A new parser, at the start of a file.
    fn parser(&self) -> Box<dyn LineParser + '_>;
}

/// Reads the lines of one file, in order.
pub(crate) trait LineParser {
    /// Writes the row of one line (never blank, without its line ending) into `records`, without committing it. After an error
    /// the caller rolls the unfinished row back.
    fn parse(&mut self, line: &[u8], records: &mut Records) -> Result<Parsed, LineError>;
}

/// The kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A row.
    Row,
    /// A header or a comment.
    NotARow,
}

/// Why a parser rejects a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LineError {
    pub(crate) slot: Option<String>,
    pub(crate) expected: String,
    pub(crate) got: String,
    /// The whole file is unreadable, so skipping this line does not help.
    pub(crate) fatal: bool,
}

impl LineError {
    /// Made only for malformed lines, so it may allocate.
    #[cold]
    pub(crate) fn new(slot: &str, expected: impl Into<String>, got: impl Into<String>) -> Self {
        LineError { slot: Some(slot.to_owned()), expected: expected.into(), got: got.into(), fatal: false }
    }

    /// An error about the line as a whole.
    #[cold]
    pub(crate) fn whole_line(expected: impl Into<String>, got: impl Into<String>) -> Self {
        LineError { slot: None, expected: expected.into(), got: got.into(), fatal: false }
    }
}

/// Text from a file for an error message: in backticks, at most 40 characters.
pub(crate) fn quote(text: &[u8]) -> String {
    const SHOWN: usize = 40;
    if text.is_empty() {
        return "nothing".to_owned();
    }
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * SHOWN + 4)]);
    let shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(SHOWN).is_some() { "..." } else { "" };
    format!("`{shown}{more}`")
}

/// The fields of a schema that a format fills.
struct FieldSelection<'a> {
    schema: &'a Schema,
    available: Vec<String>,
}

impl<'a> FieldSelection<'a> {
    /// Fails if the schema has a field that the format does not provide.
    fn new(schema: &'a Schema, available: Vec<String>, place: &'static str) -> Result<Self> {
        for field in schema.fields() {
            if !available.contains(&field.name) {
                return Err(Error::UnknownSlot { slot: field.name.clone(), place, known: available });
            }
        }
        Ok(FieldSelection { schema, available })
    }

    /// The index and kind of a field, or `None` if the schema does not have it.
    fn get(&self, name: &str) -> Option<(usize, FieldKind)> {
        debug_assert!(self.available.iter().any(|known| known == name));
        let position = self.schema.fields().iter().position(|field| field.name == name)?;
        Some((position, self.schema.fields()[position].kind))
    }
}

/// The error for a field whose kind a format cannot fill.
fn wrong_kind(name: &str, expected: impl Into<String>, got: FieldKind) -> Error {
    Error::WrongKind { slot: name.to_owned(), expected: expected.into(), got: kind_name(got) }
}

fn kind_name(kind: FieldKind) -> String {
    match kind {
        FieldKind::Ids => "any number of ids".to_owned(),
        FieldKind::FixedIds { length } => format!("exactly {length} {}", plural(length, "integer")),
        FieldKind::Floats { dim } => format!("exactly {dim} {}", plural(dim, "float")),
    }
}

/// How a label is stored: formats provide both, the schema decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LabelKind {
    Integer,
    Float,
}

impl LabelKind {
    fn of(name: &str, kind: FieldKind) -> Result<Self> {
        match kind {
            FieldKind::FixedIds { length: 1 } => Ok(LabelKind::Integer),
            FieldKind::Floats { dim: 1 } => Ok(LabelKind::Float),
            other => Err(wrong_kind(name, "exactly 1 integer or 1 float", other)),
        }
    }

    /// Writes a label that is 0 or 1.
    fn push_binary(self, positive: bool, records: &mut Records) {
        match self {
            LabelKind::Integer => records.push_key(u64::from(positive)),
            LabelKind::Float => records.push_float(f32::from(u8::from(positive))),
        }
    }
}

/// Fails unless a field has exactly `dim` floats.
fn floats_of_dim(name: &str, kind: FieldKind, dim: usize) -> Result<()> {
    let wanted = FieldKind::Floats { dim };
    if kind == wanted { Ok(()) } else { Err(wrong_kind(name, kind_name(wanted), kind)) }
}

/// Whether a slot may have a row without an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlotKind {
    ragged: bool,
}

impl SlotKind {
    /// `always_one`: the format writes exactly one id in every row, so a slot of fixed length 1 is allowed.
    fn of(name: &str, kind: FieldKind, always_one: bool, remedy: &str) -> Result<Self> {
        match kind {
            FieldKind::Ids => Ok(SlotKind { ragged: true }),
            FieldKind::FixedIds { length: 1 } if always_one => Ok(SlotKind { ragged: false }),
            FieldKind::FixedIds { length: 1 } => Err(Error::bad_format(
                format!("slot `{name}` has exactly 1 integer per row, but a row may have no value for it"),
                remedy,
            )),
            other => Err(wrong_kind(name, "a slot of ids", other)),
        }
    }

    /// Ends a slot to which `length` ids were written.
    #[inline(always)]
    fn end(self, length: usize, records: &mut Records) {
        if self.ragged {
            records.push_length(length);
        }
    }
}

/// `word`, with an `s` unless `count` is 1.
fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// The label field of formats whose label is a class.
fn label_field() -> Field {
    Field::new("label", FieldKind::FixedIds { length: 1 })
}

/// A parser on a string of lines, for the formats' own tests.
#[cfg(test)]
pub(crate) mod testing {
    use std::sync::Arc;

    use openfleet_core::{Batch, Schema};

    use super::{Format, LineError, Parsed};
    use crate::dataset::record_layout::RecordLayout;
    use crate::dataset::records::{Records, append_rows};

    /// All rows of `text` as one batch, or the first error.
    pub(crate) fn parse(format: &Format, schema: &Schema, text: &str) -> Result<Batch, LineError> {
        let resolved = format.resolve(schema).unwrap();
        let layout = Arc::new(RecordLayout::new(schema, resolved.order()));
        let mut records = Records::new(layout.clone());
        let super::ResolvedFormat::Lines(lines) = &resolved else { panic!("not a format of lines") };
        let mut parser = lines.parser();
        for line in text.lines() {
            if parser.parse(line.as_bytes(), &mut records)? == Parsed::Row {
                records.commit_row();
            }
        }
        drop(parser);
        let mut batch = Batch::new(schema);
        append_rows(&layout, (0..records.rows()).map(|row| records.row(row)), &mut batch);
        Ok(batch)
    }

    /// The error of a line, as the user sees it.
    pub(crate) fn line_error(format: &Format, schema: &Schema, line: &str) -> String {
        let error = parse(format, schema, line).unwrap_err();
        let slot = error.slot.map(|slot| format!("{slot}: ")).unwrap_or_default();
        format!("{slot}expected {}, got {}", error.expected, error.got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_cut_short_and_printable() {
        assert_eq!(quote(b"abc"), "`abc`");
        assert_eq!(quote(b""), "nothing");
        assert_eq!(quote(b"a\tb\xff"), "`a\\tb\u{fffd}`");
        assert_eq!(quote(&[b'7'; 100]), format!("`{}...`", "7".repeat(40)));
    }
}
