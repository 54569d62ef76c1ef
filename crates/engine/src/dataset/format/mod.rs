//! How lines of text become rows: one file a format, next to the two traits they obey.
//!
//! A [`Format`] is what the user chose; `resolve` checks it against a schema once and gives a `LineFormat`, which
//! opens a `LineParser` for each file. Parsers see one line at a time and complain about a value; which file and
//! which line it was, and whether to stop, is their caller's business.

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

pub use columns::{CategoricalColumn, ColumnsSpec};
pub use criteo::Criteo;
pub use csv::Csv;
pub use libsvm::LibSvm;
pub use multislot::MultiSlot;

/// The text of a dataset's files.
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
}

impl Format {
    /// The fields this format gives when nobody asks for others; `None` for MultiSlot, whose text names nothing.
    pub fn schema(&self) -> Result<Option<Schema>> {
        match self {
            Format::MultiSlot(_) => Ok(None),
            Format::Criteo(format) => Ok(Some(format.schema())),
            Format::Csv(format) => format.columns.schema().map(Some),
            Format::LibSvm(format) => format.schema().map(Some),
        }
    }

    /// Checks the choice against the fields wanted of it.
    pub(crate) fn resolve(&self, schema: &Schema) -> Result<Box<dyn LineFormat>> {
        match self {
            Format::MultiSlot(format) => format.resolve(schema),
            Format::Criteo(format) => format.resolve(schema),
            Format::Csv(format) => format.resolve(schema),
            Format::LibSvm(format) => format.resolve(schema),
        }
    }
}

/// A format that knows which fields are wanted of it; shared by all reader threads.
pub(crate) trait LineFormat: Send + Sync {
    /// The schema's fields, by position, in the order in which parsers write them.
    fn order(&self) -> &[usize];

    /// A parser at the beginning of a file.
    fn parser(&self) -> Box<dyn LineParser + '_>;
}

/// Reads the lines of one file, in order.
pub(crate) trait LineParser {
    /// Writes the row of one line (never blank, without its line ending) into `records`, without committing it. After a
    /// complaint the caller takes the unfinished row back.
    fn parse(&mut self, line: &[u8], records: &mut Records) -> Result<Parsed, LineError>;
}

/// What a line was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A row.
    Row,
    /// A header or a comment.
    NotARow,
}

/// What a parser has against a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LineError {
    pub(crate) slot: Option<String>,
    pub(crate) expected: String,
    pub(crate) got: String,
    /// The whole file is unreadable, so skipping this line will not do.
    pub(crate) fatal: bool,
}

impl LineError {
    /// Built only when a line is bad, so it may allocate.
    #[cold]
    pub(crate) fn new(slot: &str, expected: impl Into<String>, got: impl Into<String>) -> Self {
        LineError { slot: Some(slot.to_owned()), expected: expected.into(), got: got.into(), fatal: false }
    }

    /// About the line as a whole.
    #[cold]
    pub(crate) fn whole_line(expected: impl Into<String>, got: impl Into<String>) -> Self {
        LineError { slot: None, expected: expected.into(), got: got.into(), fatal: false }
    }
}

/// Text from a file in an error: in backticks, at most 40 characters.
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

/// Which of the fields a format can give are wanted, and where they stand in the schema.
struct FieldSelection<'a> {
    schema: &'a Schema,
    available: Vec<String>,
}

impl<'a> FieldSelection<'a> {
    /// Fails if the schema wants a field the format does not give.
    fn new(schema: &'a Schema, available: Vec<String>, place: &'static str) -> Result<Self> {
        for field in schema.fields() {
            if !available.contains(&field.name) {
                return Err(Error::UnknownSlot { slot: field.name.clone(), place, known: available });
            }
        }
        Ok(FieldSelection { schema, available })
    }

    /// Position and kind of a field, or `None` if the schema does not want it.
    fn get(&self, name: &str) -> Option<(usize, FieldKind)> {
        debug_assert!(self.available.iter().any(|known| known == name));
        let position = self.schema.fields().iter().position(|field| field.name == name)?;
        Some((position, self.schema.fields()[position].kind))
    }
}

/// The error of a field whose kind a format cannot fill.
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

/// How a label is stored: formats give either, as the schema asks.
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

/// A field of exactly `dim` floats, or an error.
fn floats_of_dim(name: &str, kind: FieldKind, dim: usize) -> Result<()> {
    let wanted = FieldKind::Floats { dim };
    if kind == wanted { Ok(()) } else { Err(wrong_kind(name, kind_name(wanted), kind)) }
}

/// What a slot does with a row that has no category.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SlotKind {
    ragged: bool,
}

impl SlotKind {
    /// `always_one`: the format gives exactly one id whatever the row, so that a slot of fixed length 1 will do.
    fn of(name: &str, kind: FieldKind, always_one: bool, remedy: &str) -> Result<Self> {
        match kind {
            FieldKind::Ids => Ok(SlotKind { ragged: true }),
            FieldKind::FixedIds { length: 1 } if always_one => Ok(SlotKind { ragged: false }),
            FieldKind::FixedIds { length: 1 } => Err(Error::bad_format(
                format!("slot `{name}` has exactly 1 integer a row, but a row may have no value for it"),
                remedy,
            )),
            other => Err(wrong_kind(name, "a slot of ids", other)),
        }
    }

    /// Ends a slot that was given `length` ids.
    #[inline(always)]
    fn end(self, length: usize, records: &mut Records) {
        if self.ragged {
            records.push_length(length);
        }
    }
}

/// `word` with an `s` unless there is one of it.
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

    /// All rows of `text` as one batch, or the first complaint.
    pub(crate) fn parse(format: &Format, schema: &Schema, text: &str) -> Result<Batch, LineError> {
        let resolved = format.resolve(schema).unwrap();
        let layout = Arc::new(RecordLayout::new(schema, resolved.order()));
        let mut records = Records::new(layout.clone());
        let mut parser = resolved.parser();
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

    /// The complaint about a line, as its user reads it.
    pub(crate) fn complaint(format: &Format, schema: &Schema, line: &str) -> String {
        let complaint = parse(format, schema, line).unwrap_err();
        let slot = complaint.slot.map(|slot| format!("{slot}: ")).unwrap_or_default();
        format!("{slot}expected {}, got {}", complaint.expected, complaint.got)
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
