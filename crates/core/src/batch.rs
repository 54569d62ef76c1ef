//! The input of one training step: some rows of every field.
//!
//! A [`Schema`] names the fields and their kinds; a [`Batch`] has one [`Column`] per field. Ids are stored in CSR form (offsets
//! and keys), so a row of a slot may have any number of ids, including none. Columns are reused from step to step: `clear`
//! keeps their memory, so a step allocates nothing after warm-up.
//!
//! This module does not know where rows come from (datasets, the network, a user's arrays) or what reads them.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::key::Key;

/// What a field has in each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldKind {
    /// 64-bit integers: a sparse slot. Any number per row.
    Ids,
    /// Exactly `length` 64-bit integers per row: a label, or a slot of fixed length.
    FixedIds {
        /// Integers per row.
        length: usize,
    },
    /// Exactly `dim` floats per row.
    Floats {
        /// Floats per row.
        dim: usize,
    },
}

/// One field's name and kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// The name of a program's data variable.
    pub name: String,
    /// Its kind.
    pub kind: FieldKind,
}

impl Field {
    /// A field of this name and kind.
    pub fn new(name: impl Into<String>, kind: FieldKind) -> Self {
        Field { name: name.into(), kind }
    }
}

/// The fields of a batch, in order, with distinct names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    fields: Vec<Field>,
}

impl Schema {
    /// Fails if two fields share a name.
    pub fn new(fields: Vec<Field>) -> Result<Self> {
        for (i, field) in fields.iter().enumerate() {
            if fields[..i].iter().any(|earlier| earlier.name == field.name) {
                return Err(Error::DuplicateField { name: field.name.clone() });
            }
        }
        Ok(Schema { fields })
    }

    /// All fields in order.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The position of a field. Fails if there is no field of this name.
    pub fn position(&self, name: &str) -> Result<usize> {
        self.fields.iter().position(|field| field.name == name).ok_or_else(|| Error::UnknownField {
            name: name.to_owned(),
            known: self.fields.iter().map(|field| field.name.clone()).collect(),
        })
    }
}

/// The values of one field for all rows of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Column {
    /// Row `r` has `keys[offsets[r]..offsets[r + 1]]`; `offsets` starts with 0 and has one more entry than there are rows.
    Ids {
        /// The start of each row, then the end of the last.
        offsets: Vec<u32>,
        /// The ids of all rows, one after the other.
        keys: Vec<Key>,
    },
    /// Row `r` has `values[r * dim..(r + 1) * dim]`.
    Floats {
        /// Floats per row.
        dim: usize,
        /// The values of all rows, one after the other.
        values: Vec<f32>,
    },
}

impl Column {
    /// An empty column for a kind of field.
    pub fn new(kind: FieldKind) -> Self {
        match kind {
            FieldKind::Ids | FieldKind::FixedIds { .. } => Column::Ids { offsets: vec![0], keys: Vec::new() },
            FieldKind::Floats { dim } => Column::Floats { dim, values: Vec::new() },
        }
    }

    /// Removes the rows and keeps the memory.
    pub fn clear(&mut self) {
        match self {
            Column::Ids { offsets, keys } => {
                offsets.truncate(1);
                keys.clear();
            }
            Column::Floats { values, .. } => values.clear(),
        }
    }

    /// Number of complete rows.
    pub fn rows(&self) -> usize {
        match self {
            Column::Ids { offsets, .. } => offsets.len() - 1,
            Column::Floats { dim, values } => values.len() / (*dim).max(1),
        }
    }

    /// Adds one row of ids. Must not be called on a column of floats.
    pub fn push_ids(&mut self, ids: &[Key]) {
        let Column::Ids { offsets, keys } = self else { panic!("push_ids on a column of floats") };
        keys.extend_from_slice(ids);
        offsets.push(keys.len() as u32);
    }

    /// Adds one row of floats. Must not be called on a column of ids.
    pub fn push_floats(&mut self, row: &[f32]) {
        let Column::Floats { dim, values } = self else { panic!("push_floats on a column of ids") };
        assert_eq!(row.len(), *dim, "a row of floats has the field's dim");
        values.extend_from_slice(row);
    }
}

/// Some rows of every field of a schema.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Number of rows, the same in every column.
    pub rows: usize,
    /// One column per field, in the schema's order.
    pub columns: Vec<Column>,
}

impl Batch {
    /// An empty batch with a column for each field.
    pub fn new(schema: &Schema) -> Self {
        Batch { rows: 0, columns: schema.fields().iter().map(|field| Column::new(field.kind)).collect() }
    }

    /// Removes the rows and keeps the memory.
    pub fn clear(&mut self) {
        self.rows = 0;
        self.columns.iter_mut().for_each(Column::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_batch_keeps_its_memory() {
        let schema =
            Schema::new(vec![Field::new("slot", FieldKind::Ids), Field::new("dense", FieldKind::Floats { dim: 2 })])
                .unwrap();
        let mut batch = Batch::new(&schema);
        batch.columns[0].push_ids(&[7, 0]);
        batch.columns[0].push_ids(&[]);
        batch.columns[1].push_floats(&[1.0, 2.0]);
        batch.columns[1].push_floats(&[3.0, 4.0]);
        batch.rows = 2;
        assert_eq!(batch.columns[0], Column::Ids { offsets: vec![0, 2, 2], keys: vec![7, 0] });
        assert!(batch.columns.iter().all(|column| column.rows() == 2));
        batch.clear();
        let Column::Ids { keys, offsets } = &batch.columns[0] else { unreachable!() };
        assert_eq!((offsets.as_slice(), keys.len()), ([0].as_slice(), 0));
        assert!(keys.capacity() >= 2);
    }

    #[test]
    fn a_schema_refuses_two_fields_of_one_name() {
        let twice = vec![Field::new("a", FieldKind::Ids), Field::new("a", FieldKind::Ids)];
        assert_eq!(Schema::new(twice), Err(Error::DuplicateField { name: "a".into() }));
    }
}
