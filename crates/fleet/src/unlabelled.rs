//! Data without labels for a network that reads one: every row is given the label 0, which its prediction does not see.

use openfleet_core::{Batch, Column, Field, FieldKind, Schema};
use openfleet_engine::dataset::{BatchReader, Dataset, Progress, Result};

/// A dataset with a `label` that is always 0.
pub struct Unlabelled<D> {
    inner: D,
    schema: Schema,
    label: FieldKind,
}

impl<D: Dataset> Unlabelled<D> {
    /// Adds a last field `label` of this kind to a dataset that has none.
    pub fn new(inner: D, label: FieldKind) -> Result<Self, openfleet_core::Error> {
        let fields = inner.schema().fields().iter().cloned().chain([Field::new("label", label)]).collect();
        Ok(Unlabelled { schema: Schema::new(fields)?, inner, label })
    }
}

impl<D: Dataset> Dataset for Unlabelled<D> {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn batch_size(&self) -> usize {
        self.inner.batch_size()
    }

    fn thread_num(&self) -> usize {
        self.inner.thread_num()
    }

    fn rows(&self) -> Option<usize> {
        self.inner.rows()
    }

    fn open(&self) -> Result<Box<dyn BatchReader + '_>> {
        Ok(Box::new(Reader { inner: self.inner.open()?, fields: self.schema.fields().len(), label: self.label }))
    }
}

struct Reader<'a> {
    inner: Box<dyn BatchReader + 'a>,
    fields: usize,
    label: FieldKind,
}

impl BatchReader for Reader<'_> {
    fn next(&self, batch: &mut Batch) -> Result<bool> {
        // The inner dataset fills a batch of its own fields.
        let kept = if batch.columns.len() == self.fields { batch.columns.pop() } else { None };
        let more = self.inner.next(batch);
        let mut labels = kept.unwrap_or_else(|| Column::new(self.label));
        labels.clear();
        for _ in 0..batch.rows {
            match labels {
                Column::Ids { .. } => labels.push_ids(&[0]),
                Column::Floats { .. } => labels.push_floats(&[0.0]),
            }
        }
        batch.columns.push(labels);
        more
    }

    fn progress(&self) -> Progress {
        self.inner.progress()
    }
}
