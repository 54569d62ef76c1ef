//! Rows in memory, between a parser and a batch.
//!
//! [`Records`] is row-major: all ids of a row are adjacent, followed by the ids of the next row, and the same for floats. So a
//! random row costs a few adjacent cache lines instead of one per field. A batch is column-major; [`append_rows`] transposes on
//! the training path.
//!
//! ```text
//! keys     | row 0: label, C1 ids, C2 ids ... | row 1: ...     8 bytes each
//! starts   | start of row 0 | row 1 | ... | the end            4 bytes per row
//! lengths  | row 0: |C1|, |C2| ... | row 1: ...                1 byte per ragged slot; 4 once any length exceeds 255
//! floats   | row 0: dense ... | row 1: ...                     4 bytes each
//! ```
//!
//! A Criteo row (26 ragged slots of one id, 13 floats, a label) takes 298 bytes for 268 bytes of raw values. Lengths are not
//! varints: those would save memory only in the rare wide chunk, and cost a second offset per row and a decoding loop.
//!
//! This module does not know text, files or threads.

use std::sync::Arc;

use openfleet_core::{Batch, Column, Key};

use super::record_layout::RecordLayout;

/// Rows in the order of a [`RecordLayout`]. A parser writes a row value by value, then commits it or rolls it back.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    layout: Arc<RecordLayout>,
    keys: Vec<Key>,
    floats: Vec<f32>,
    lengths: Lengths,
    /// One entry per row, and the end of the last.
    starts: Vec<u32>,
}

/// One byte per length until a slot has more than 255 ids; then the whole chunk is widened once.
#[derive(Debug, Clone)]
enum Lengths {
    Narrow(Vec<u8>),
    Wide(Vec<u32>),
}

impl Records {
    pub(crate) fn new(layout: Arc<RecordLayout>) -> Self {
        Records { layout, keys: Vec::new(), floats: Vec::new(), lengths: Lengths::Narrow(Vec::new()), starts: vec![0] }
    }

    /// The number of committed rows.
    pub(crate) fn rows(&self) -> usize {
        self.starts.len() - 1
    }

    /// The number of ids in all rows.
    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Removes the rows and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.floats.clear();
        self.starts.truncate(1);
        match &mut self.lengths {
            Lengths::Narrow(lengths) => lengths.clear(),
            wide @ Lengths::Wide(_) => *wide = Lengths::Narrow(Vec::new()),
        }
    }

    /// A copy of the rows without spare capacity.
    pub(crate) fn sealed(&self) -> Records {
        // `Vec::clone` allocates exactly; the vectors of `self` have grown by doubling.
        self.clone()
    }

    /// Bytes held, including spare capacity.
    pub(crate) fn memory_bytes(&self) -> usize {
        let lengths = match &self.lengths {
            Lengths::Narrow(lengths) => lengths.capacity(),
            Lengths::Wide(lengths) => lengths.capacity() * size_of::<u32>(),
        };
        size_of::<Self>()
            + self.keys.capacity() * size_of::<Key>()
            + self.floats.capacity() * size_of::<f32>()
            + self.starts.capacity() * size_of::<u32>()
            + lengths
    }

    /// Adds an id to the row being written.
    #[inline(always)]
    pub(crate) fn push_key(&mut self, key: Key) {
        self.keys.push(key);
    }

    /// An id of the row being written, by its index in the row.
    #[inline]
    pub(crate) fn written_key(&self, offset: usize) -> Key {
        self.keys[self.starts[self.rows()] as usize + offset]
    }

    /// Adds a float to the row being written.
    #[inline(always)]
    pub(crate) fn push_float(&mut self, value: f32) {
        self.floats.push(value);
    }

    /// Adds `dim` zeros to the row being written and returns them, for parsers that find their values in any order.
    pub(crate) fn push_zeros(&mut self, dim: usize) -> &mut [f32] {
        let start = self.floats.len();
        self.floats.resize(start + dim, 0.0);
        &mut self.floats[start..]
    }

    /// The last `dim` floats of the row being written.
    pub(crate) fn last_floats(&mut self, dim: usize) -> &mut [f32] {
        let start = self.floats.len() - dim;
        &mut self.floats[start..]
    }

    /// Sets the number of ids of the ragged slot that was just written.
    #[inline(always)]
    pub(crate) fn push_length(&mut self, length: usize) {
        if let Lengths::Narrow(lengths) = &mut self.lengths
            && length <= usize::from(u8::MAX)
        {
            lengths.push(length as u8);
            return;
        }
        self.push_wide_length(length);
    }

    #[cold]
    fn push_wide_length(&mut self, length: usize) {
        if let Lengths::Narrow(lengths) = &self.lengths {
            self.lengths = Lengths::Wide(lengths.iter().map(|&length| u32::from(length)).collect());
        }
        if let Lengths::Wide(lengths) = &mut self.lengths {
            lengths.push(length as u32);
        }
    }

    /// Ends the row being written; every field of the layout must have been written.
    #[inline]
    pub(crate) fn commit_row(&mut self) {
        self.starts.push(self.keys.len() as u32);
        debug_assert_eq!(
            self.floats.len(),
            self.rows() * self.layout.float_width,
            "the parser did not write all floats"
        );
        debug_assert!(
            matches!(&self.lengths, Lengths::Wide(_))
                || matches!(&self.lengths, Lengths::Narrow(l) if l.len() == self.rows() * self.layout.ragged_slots),
            "the parser did not write all slots"
        );
    }

    /// Removes the row being written.
    pub(crate) fn roll_back_row(&mut self) {
        let rows = self.rows();
        self.keys.truncate(self.starts[rows] as usize);
        self.floats.truncate(rows * self.layout.float_width);
        match &mut self.lengths {
            Lengths::Narrow(lengths) => lengths.truncate(rows * self.layout.ragged_slots),
            Lengths::Wide(lengths) => lengths.truncate(rows * self.layout.ragged_slots),
        }
    }

    /// Adds a committed row of the same layout.
    pub(crate) fn push_row(&mut self, row: RowView<'_>) {
        self.keys.extend_from_slice(row.keys);
        self.floats.extend_from_slice(row.floats);
        (0..self.layout.ragged_slots).for_each(|slot| self.push_length(row.lengths.get(slot)));
        self.commit_row();
    }

    /// Appends the rows to `bytes`, for another process with the same layout.
    ///
    /// ```text
    /// rows u32 | keys u32 | for each row: its ids u32, the lengths of its ragged slots u32 each | keys u64 | floats f32
    /// ```
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend((self.rows() as u32).to_le_bytes());
        bytes.extend((self.keys.len() as u32).to_le_bytes());
        for row in 0..self.rows() {
            let view = self.row(row);
            bytes.extend((view.keys.len() as u32).to_le_bytes());
            (0..self.layout.ragged_slots).for_each(|slot| bytes.extend((view.lengths.get(slot) as u32).to_le_bytes()));
        }
        self.keys.iter().for_each(|key| bytes.extend(key.to_le_bytes()));
        self.floats.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    }

    /// Adds the rows that [`write`](Self::write) wrote. Returns `None`, and adds nothing, if they have another layout.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<()> {
        let (rows, bytes) = take_u32(bytes)?;
        let (keys, bytes) = take_u32(bytes)?;
        let slots = self.layout.ragged_slots;
        let (heads, bytes) = bytes.split_at_checked(rows.checked_mul(1 + slots)?.checked_mul(4)?)?;
        let (all_keys, all_floats) = bytes.split_at_checked(keys.checked_mul(8)?)?;
        if all_floats.len() != rows.checked_mul(self.layout.float_width)?.checked_mul(4)? {
            return None;
        }
        let heads: Vec<usize> = heads.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word) as usize).collect();
        let mut total = 0;
        for head in heads.chunks_exact(1 + slots) {
            if head[0] != self.layout.fixed_keys + head[1..].iter().sum::<usize>() {
                return None;
            }
            total += head[0];
        }
        if total != keys {
            return None;
        }
        let mut all_keys = all_keys.as_chunks().0.iter().map(|&word| Key::from_le_bytes(word));
        self.floats.extend(all_floats.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)));
        for head in heads.chunks_exact(1 + slots) {
            self.keys.extend(all_keys.by_ref().take(head[0]));
            head[1..].iter().for_each(|&length| self.push_length(length));
            self.starts.push(self.keys.len() as u32);
        }
        Some(())
    }

    /// A committed row.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> RowView<'_> {
        let slots = self.layout.ragged_slots;
        let width = self.layout.float_width;
        let lengths = match &self.lengths {
            Lengths::Narrow(lengths) => RowLengths::Narrow(&lengths[row * slots..(row + 1) * slots]),
            Lengths::Wide(lengths) => RowLengths::Wide(&lengths[row * slots..(row + 1) * slots]),
        };
        RowView {
            keys: &self.keys[self.starts[row] as usize..self.starts[row + 1] as usize],
            floats: &self.floats[row * width..(row + 1) * width],
            lengths,
        }
    }
}

fn take_u32(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*word) as usize, rest))
}

/// A view of one stored row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowView<'a> {
    keys: &'a [Key],
    floats: &'a [f32],
    lengths: RowLengths<'a>,
}

#[derive(Debug, Clone, Copy)]
enum RowLengths<'a> {
    Narrow(&'a [u8]),
    Wide(&'a [u32]),
}

impl RowView<'_> {
    /// The number of bytes that [`Records::write`] needs for it.
    pub(crate) fn written_bytes(&self, layout: &RecordLayout) -> usize {
        4 + layout.ragged_slots * 4 + self.keys.len() * 8 + self.floats.len() * 4
    }
}

impl RowLengths<'_> {
    #[inline(always)]
    fn get(&self, slot: usize) -> usize {
        match self {
            RowLengths::Narrow(lengths) => usize::from(lengths[slot]),
            RowLengths::Wide(lengths) => lengths[slot] as usize,
        }
    }
}

/// Rows transposed at a time: their views stay in the first-level cache while the columns are filled one by one.
const BLOCK: usize = 64;

/// Appends `rows` to a batch that has a column for each field of `layout`.
pub(crate) fn append_rows<'a>(
    layout: &RecordLayout,
    mut rows: impl ExactSizeIterator<Item = RowView<'a>>,
    batch: &mut Batch,
) {
    let empty = RowView { keys: &[], floats: &[], lengths: RowLengths::Narrow(&[]) };
    let mut views = [empty; BLOCK];
    while rows.len() > 0 {
        let mut filled = 0;
        for (view, row) in views.iter_mut().zip(rows.by_ref()) {
            *view = row;
            filled += 1;
        }
        append_block(layout, &mut views[..filled], batch);
    }
}

fn append_block(layout: &RecordLayout, views: &mut [RowView<'_>], batch: &mut Batch) {
    let mut slot = 0;
    for field in &layout.ids {
        let Column::Ids { offsets, keys } = &mut batch.columns[field.column] else {
            panic!("column {} of the batch does not match the dataset's schema", field.column);
        };
        // Most slots have one id per row. For a block of such rows both columns grow by a known length, without a capacity check
        // per value.
        let all_one = match field.length {
            Some(length) => length == 1,
            None => views.iter().all(|view| view.lengths.get(slot) == 1),
        };
        if all_one {
            let first = keys.len() as u32 + 1;
            offsets.extend(first..first + views.len() as u32);
            keys.extend(views.iter_mut().map(|view| {
                let (ids, rest) = view.keys.split_at(1);
                view.keys = rest;
                ids[0]
            }));
        } else {
            for view in views.iter_mut() {
                let (ids, rest) = view.keys.split_at(field.length.unwrap_or_else(|| view.lengths.get(slot)));
                view.keys = rest;
                keys.extend_from_slice(ids);
                offsets.push(keys.len() as u32);
            }
        }
        slot += usize::from(field.length.is_none());
    }
    for field in &layout.floats {
        let Column::Floats { values, .. } = &mut batch.columns[field.column] else {
            panic!("column {} of the batch does not match the dataset's schema", field.column);
        };
        values.reserve(views.len() * field.dim);
        for view in views.iter() {
            values.extend_from_slice(&view.floats[field.start..field.start + field.dim]);
        }
    }
    batch.rows += views.len();
}

#[cfg(test)]
mod tests {
    use super::*;
    use openfleet_core::{Field, FieldKind, Schema};

    fn schema() -> Schema {
        Schema::new(vec![
            Field::new("slot", FieldKind::Ids),
            Field::new("dense", FieldKind::Floats { dim: 2 }),
            Field::new("label", FieldKind::FixedIds { length: 1 }),
        ])
        .unwrap()
    }

    fn write(records: &mut Records, label: Key, ids: &[Key], dense: [f32; 2]) {
        records.push_key(label);
        ids.iter().for_each(|&id| records.push_key(id));
        records.push_length(ids.len());
        dense.iter().for_each(|&value| records.push_float(value));
    }

    #[test]
    fn rows_stored_in_the_files_order_land_in_the_schemas_columns() {
        let schema = schema();
        let layout = Arc::new(RecordLayout::new(&schema, &[2, 0, 1]));
        let mut records = Records::new(layout.clone());
        write(&mut records, 1, &[7, 0], [0.5, -1.0]);
        records.commit_row();
        write(&mut records, 0, &[], [2.0, 3.0]);
        records.commit_row();
        let mut batch = Batch::new(&schema);
        append_rows(&layout, [1, 0].map(|row| records.row(row)).into_iter(), &mut batch);
        assert_eq!(batch.rows, 2);
        assert_eq!(batch.columns[0], Column::Ids { offsets: vec![0, 0, 2], keys: vec![7, 0] });
        assert_eq!(batch.columns[1], Column::Floats { dim: 2, values: vec![2.0, 3.0, 0.5, -1.0] });
        assert_eq!(batch.columns[2], Column::Ids { offsets: vec![0, 1, 2], keys: vec![0, 1] });
    }

    #[test]
    fn a_rolled_back_row_leaves_no_trace() {
        let schema = schema();
        let layout = Arc::new(RecordLayout::new(&schema, &[2, 0, 1]));
        let mut records = Records::new(layout.clone());
        write(&mut records, 1, &[7], [0.5, -1.0]);
        records.commit_row();
        let before = format!("{records:?}");
        write(&mut records, 0, &[9, 9], [1.0, 1.0]);
        records.roll_back_row();
        assert_eq!(format!("{records:?}"), before);
    }

    #[test]
    fn a_slot_of_more_than_255_ids_widens_the_chunk_and_keeps_every_row() {
        let schema = schema();
        let layout = Arc::new(RecordLayout::new(&schema, &[2, 0, 1]));
        let mut records = Records::new(layout.clone());
        let long: Vec<Key> = (0..300).collect();
        write(&mut records, 1, &[5], [0.0; 2]);
        records.commit_row();
        write(&mut records, 0, &long, [0.0; 2]);
        records.commit_row();
        write(&mut records, 1, &[], [0.0; 2]);
        records.commit_row();
        let mut batch = Batch::new(&schema);
        append_rows(&layout, (0..3).map(|row| records.row(row)), &mut batch);
        let Column::Ids { offsets, keys } = &batch.columns[0] else { unreachable!() };
        assert_eq!(offsets, &[0, 1, 301, 301]);
        assert_eq!(keys[1..], long[..]);
    }

    #[test]
    fn rows_survive_encoding_and_rows_of_another_layout_are_refused() {
        let layout = Arc::new(RecordLayout::new(&schema(), &[2, 0, 1]));
        let mut records = Records::new(layout.clone());
        write(&mut records, 1, &[7, u64::MAX], [0.5, f32::MIN]);
        records.commit_row();
        write(&mut records, 0, &(0..300).collect::<Vec<Key>>(), [2.0, 3.0]);
        records.commit_row();
        let mut again = Records::new(layout.clone());
        again.push_row(records.row(1));
        let mut bytes = Vec::new();
        records.write(&mut bytes);
        assert_eq!(bytes.len(), 8 + (0..2).map(|row| records.row(row).written_bytes(&layout)).sum::<usize>());
        again.read(&bytes).unwrap();
        assert_eq!(again.rows(), 3);
        for (row, original) in [(0, 1), (1, 0), (2, 1)] {
            assert_eq!(again.row(row).keys, records.row(original).keys);
            assert_eq!(again.row(row).floats, records.row(original).floats);
            assert_eq!(again.row(row).lengths.get(0), records.row(original).lengths.get(0));
        }
        let other = Arc::new(RecordLayout::new(&schema(), &[2, 1]));
        let before = format!("{again:?}");
        assert!(Records::new(other).read(&bytes).is_none());
        for cut in 0..bytes.len() {
            assert!(again.read(&bytes[..cut]).is_none(), "{cut} bytes of {}", bytes.len());
        }
        assert_eq!(format!("{again:?}"), before);
    }

    #[test]
    fn sealed_rows_have_no_spare_capacity() {
        let layout = Arc::new(RecordLayout::new(&schema(), &[2, 0, 1]));
        let mut records = Records::new(layout);
        for row in 0..1000 {
            write(&mut records, row, &[row], [0.0; 2]);
            records.commit_row();
        }
        let raw = 1000 * (8 + 8 + 1 + 8) + 1001 * 4;
        assert_eq!(records.sealed().memory_bytes(), raw + size_of::<Records>());
    }
}
