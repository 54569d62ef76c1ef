//! Which fields a stored row has, and in which order.

use openfleet_core::{FieldKind, Schema};

/// The order in which a parser writes the fields of a row, and what each is.
///
/// A file's order need not be the schema's: rows are stored in the file's, columns are found by `column`.
#[derive(Debug)]
pub(crate) struct RecordLayout {
    pub(super) ids: Vec<StoredIds>,
    pub(super) floats: Vec<StoredFloats>,
    pub(super) ragged_slots: usize,
    pub(super) fixed_keys: usize,
    pub(super) float_width: usize,
}

#[derive(Debug)]
pub(super) struct StoredIds {
    pub(super) column: usize,
    /// `None`: ragged, the length stands in the row's lengths.
    pub(super) length: Option<usize>,
}

#[derive(Debug)]
pub(super) struct StoredFloats {
    pub(super) column: usize,
    pub(super) start: usize,
    pub(super) dim: usize,
}

impl RecordLayout {
    /// `order` lists the schema's fields, by position, in the order in which they will be written.
    pub(crate) fn new(schema: &Schema, order: &[usize]) -> Self {
        let mut layout =
            RecordLayout { ids: Vec::new(), floats: Vec::new(), ragged_slots: 0, fixed_keys: 0, float_width: 0 };
        for &column in order {
            match schema.fields()[column].kind {
                FieldKind::Ids => {
                    layout.ids.push(StoredIds { column, length: None });
                    layout.ragged_slots += 1;
                }
                FieldKind::FixedIds { length } => {
                    layout.ids.push(StoredIds { column, length: Some(length) });
                    layout.fixed_keys += length;
                }
                FieldKind::Floats { dim } => {
                    layout.floats.push(StoredFloats { column, start: layout.float_width, dim });
                    layout.float_width += dim;
                }
            }
        }
        layout
    }

    /// Where a field of one id stands among the ids of every row; `None` for other fields, and behind a ragged one.
    pub(crate) fn key_offset(&self, column: usize) -> Option<usize> {
        let mut offset = 0;
        for ids in &self.ids {
            if ids.column == column {
                return ids.length.filter(|&length| length == 1).map(|_| offset);
            }
            offset += ids.length?;
        }
        None
    }
}
