//! One batch made by the caller: named arrays in, a batch with its schema out.

use openfleet_core::{Batch, Column, Field, FieldKind, Key, Schema};

use crate::error::{Error, Result};

/// Per field of a feed: its dimensions, if the caller gave them.
pub(crate) type FedDims = Vec<Option<Vec<usize>>>;

/// Named arrays for one step of [`Executor::run`](crate::Executor::run).
#[derive(Debug, Clone, Default)]
pub struct Feed {
    fields: Vec<Field>,
    batch: Batch,
    /// Per field: its dimensions, if the caller gave them.
    dims: FedDims,
}

impl Feed {
    /// An empty feed.
    pub fn new() -> Self {
        Feed::default()
    }

    /// Adds floats, `dim` per row. Fails if `values` is not a whole number of rows, or has another number of rows than the fields
    /// before it.
    pub fn floats(mut self, name: &str, dim: usize, values: Vec<f32>) -> Result<Self> {
        let rows = rows_of(name, dim, values.len())?;
        self.add(name, FieldKind::Floats { dim }, Column::Floats { dim, values }, rows)?;
        Ok(self)
    }

    /// Adds integers, `length` per row: labels, or a slot of fixed length. Fails like [`floats`](Self::floats).
    pub fn ints(mut self, name: &str, length: usize, values: &[i64]) -> Result<Self> {
        let rows = rows_of(name, length, values.len())?;
        let offsets = (0..=rows).map(|r| (r * length) as u32).collect();
        let keys = values.iter().map(|&v| v as Key).collect();
        self.add(name, FieldKind::FixedIds { length }, Column::Ids { offsets, keys }, rows)?;
        Ok(self)
    }

    /// Adds a slot with any number of ids per row. Fails if the fields before it have another number of rows.
    pub fn slot(mut self, name: &str, rows: &[&[Key]]) -> Result<Self> {
        let mut column = Column::new(FieldKind::Ids);
        rows.iter().for_each(|ids| column.push_ids(ids));
        self.add(name, FieldKind::Ids, column, rows.len())?;
        Ok(self)
    }

    /// Adds a slot from the number of ids in each row and the ids of all rows in order.
    pub fn ids(mut self, name: &str, lengths: &[usize], keys: Vec<Key>) -> Result<Self> {
        let total: usize = lengths.iter().sum();
        if total != keys.len() || u32::try_from(total).is_err() {
            return Err(Error::FeedMismatch {
                name: name.to_owned(),
                expected: format!("{total} ids, the sum of the row lengths (at most 2^32)"),
                got: format!("{} ids", keys.len()),
            });
        }
        let mut offsets = Vec::with_capacity(lengths.len() + 1);
        offsets.push(0);
        let mut end = 0;
        offsets.extend(lengths.iter().map(|&length| {
            end += length as u32;
            end
        }));
        self.add(name, FieldKind::Ids, Column::Ids { offsets, keys }, lengths.len())?;
        Ok(self)
    }

    /// Adds floats of any dimensions, for programs whose shapes are known when they run. The first dimension need not be that of
    /// the other fields; the number of rows of the batch is that of the first field with `is_batch`.
    pub fn shaped_floats(mut self, name: &str, dims: &[usize], values: Vec<f32>, is_batch: bool) -> Result<Self> {
        let (_, dim) = self.shaped(name, dims, values.len(), is_batch)?;
        self.push(Field::new(name, FieldKind::Floats { dim }), Column::Floats { dim, values }, Some(dims.to_vec()));
        Ok(self)
    }

    /// Adds integers of any dimensions, like [`shaped_floats`](Self::shaped_floats).
    pub fn shaped_ints(mut self, name: &str, dims: &[usize], values: &[i64], is_batch: bool) -> Result<Self> {
        let (rows, length) = self.shaped(name, dims, values.len(), is_batch)?;
        let offsets = (0..=rows).map(|r| (r * length) as u32).collect();
        let keys = values.iter().map(|&v| v as Key).collect();
        self.push(Field::new(name, FieldKind::FixedIds { length }), Column::Ids { offsets, keys }, Some(dims.to_vec()));
        Ok(self)
    }

    /// The rows and the elements per row of an array of these dimensions.
    fn shaped(&mut self, name: &str, dims: &[usize], count: usize, is_batch: bool) -> Result<(usize, usize)> {
        let expected: usize = dims.iter().product();
        if expected != count || u32::try_from(count).is_err() {
            return Err(Error::FeedMismatch {
                name: name.to_owned(),
                expected: format!("{expected} values, the product of the dimensions {dims:?} (at most 2^32)"),
                got: format!("{count} values"),
            });
        }
        let rows = dims.first().copied().unwrap_or(1);
        if self.batch.rows == 0 && is_batch {
            self.batch.rows = rows;
        }
        Ok((rows, dims.iter().skip(1).product()))
    }

    /// The schema and the batch. Fails if two fields have the same name.
    pub fn into_parts(self) -> Result<(Schema, Batch)> {
        let (schema, batch, _) = self.into_shaped_parts()?;
        Ok((schema, batch))
    }

    /// The same with the dimensions that the caller gave.
    pub(crate) fn into_shaped_parts(mut self) -> Result<(Schema, Batch, FedDims)> {
        if self.batch.rows == 0 && self.dims.iter().any(Option::is_some) {
            // No field is the batch: the whole feed is one row.
            self.batch.rows = 1;
        }
        Ok((Schema::new(self.fields)?, self.batch, self.dims))
    }

    fn add(&mut self, name: &str, kind: FieldKind, column: Column, rows: usize) -> Result<()> {
        if let Some(first) = self.dims.iter().position(Option::is_none).filter(|_| rows != self.batch.rows) {
            return Err(Error::FeedMismatch {
                name: name.to_owned(),
                expected: format!("{} rows, like `{}`", self.batch.rows, self.fields[first].name),
                got: format!("{rows} rows"),
            });
        }
        self.batch.rows = rows;
        self.push(Field::new(name, kind), column, None);
        Ok(())
    }

    fn push(&mut self, field: Field, column: Column, dims: Option<Vec<usize>>) {
        self.fields.push(field);
        self.batch.columns.push(column);
        self.dims.push(dims);
    }
}

fn rows_of(name: &str, per_row: usize, count: usize) -> Result<usize> {
    if per_row == 0 || !count.is_multiple_of(per_row) {
        return Err(Error::FeedMismatch {
            name: name.to_owned(),
            expected: format!("a multiple of {per_row} values"),
            got: format!("{count} values"),
        });
    }
    Ok(count / per_row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_cut_into_rows_by_their_lengths() {
        let (schema, batch) = Feed::new().ids("slot", &[2, 0, 1], vec![7, 8, 9]).unwrap().into_parts().unwrap();
        assert_eq!(schema.fields(), [Field::new("slot", FieldKind::Ids)]);
        assert_eq!(batch.rows, 3);
        assert_eq!(batch.columns, [Column::Ids { offsets: vec![0, 2, 2, 3], keys: vec![7, 8, 9] }]);
    }

    #[test]
    fn lengths_that_do_not_add_up_are_refused() {
        let error = Feed::new().ids("slot", &[2, 2], vec![7]).unwrap_err();
        assert!(matches!(&error, Error::FeedMismatch { name, .. } if name == "slot"), "{error}");
    }
}
