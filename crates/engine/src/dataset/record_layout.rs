//! The fields of a stored row and their order.

use openfleet_core::{FieldKind, Schema};

/// The order in which a parser writes the fields of a row, and the kind of each.
///
/// Rows are stored in the order of the file, which may differ from the schema's; `column` is the field's index in the schema.
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
    /// `None` for a ragged slot, whose length is in the row's lengths.
    pub(super) length: Option<usize>,
}

#[derive(Debug)]
pub(super) struct StoredFloats {
    pub(super) column: usize,
    pub(super) start: usize,
    pub(super) dim: usize,
}

impl RecordLayout {
    /// `order` lists indexes of the schema's fields, in the order in which they will be written.
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

    /// The index of a field of one id among the ids of every row; `None` for other fields, and for fields after a ragged one.
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
