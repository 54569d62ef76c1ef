//! A subset of a worker's tables, numbered as a smaller program numbers them.
//!
//! A program that looks up word vectors, or evaluates one tower of a model, uses fewer tables than the program that trains
//! them. Its stages number tables from 0 in its own order. This communicator translates the numbers and passes every call on to
//! the communicator of all tables. The stages always get their own numbers back, even after an error.

use std::sync::Arc;

use openfleet_core::{Key, WorkId};

use super::{Communicator, Missing, Pushed, Step};
use crate::error::Result;
use crate::stage::{DenseStage, SparseStage};

/// A communicator for a subset of another communicator's tables.
pub struct TableSubset {
    whole: Arc<dyn Communicator>,
    /// For each sparse table, its number in `whole`.
    sparse: Vec<usize>,
    /// For each dense table, its number in `whole`.
    dense: Vec<usize>,
}

impl TableSubset {
    /// `sparse` and `dense` are the numbers of the tables in `whole`, in the order of the smaller program.
    pub fn new(whole: Arc<dyn Communicator>, sparse: Vec<usize>, dense: Vec<usize>) -> Self {
        TableSubset { whole, sparse, dense }
    }

    fn with_sparse<T>(&self, stages: &mut [SparseStage], call: impl FnOnce(&mut [SparseStage]) -> T) -> T {
        let tables = |stages: &mut [SparseStage], number: &dyn Fn(usize) -> usize| {
            let lookups = stages.iter_mut().flat_map(|stage| &mut stage.lookups);
            lookups.for_each(|lookup| lookup.table = number(lookup.table));
        };
        tables(stages, &|table| self.sparse[table]);
        let result = call(stages);
        tables(stages, &|table| own_number(&self.sparse, table));
        result
    }

    fn with_dense<T>(&self, stages: &mut [DenseStage], call: impl FnOnce(&mut [DenseStage]) -> T) -> T {
        stages.iter_mut().for_each(|stage| stage.table = self.dense[stage.table]);
        let result = call(stages);
        stages.iter_mut().for_each(|stage| stage.table = own_number(&self.dense, stage.table));
        result
    }
}

/// A linear search: a program has few tables, and each of them once.
fn own_number(tables: &[usize], number: usize) -> usize {
    tables.iter().position(|&table| table == number).unwrap_or(number)
}

impl Communicator for TableSubset {
    fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()> {
        self.with_sparse(stages, |stages| self.whole.pull_sparse(stages, missing))
    }

    fn put_rows(&self, table: usize, keys: &[Key], rows: &[f32]) -> Result<()> {
        self.whole.put_rows(self.sparse[table], keys, rows)
    }

    fn keys(&self, table: usize) -> Result<Vec<Key>> {
        self.whole.keys(self.sparse[table])
    }

    fn set_rate_factor(&self, factor: f32) {
        self.whole.set_rate_factor(factor);
    }

    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        self.with_dense(stages, |stages| self.whole.pull_dense(stages))
    }

    fn push(&self, work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<Pushed> {
        self.with_sparse(sparse, |sparse| self.with_dense(dense, |dense| self.whole.push(work, sparse, dense)))
    }

    fn push_within_norm(
        &self,
        work: WorkId,
        sparse: &mut [SparseStage],
        dense: &mut [DenseStage],
        norm: f32,
    ) -> Result<Pushed> {
        let push = |sparse: &mut [SparseStage], dense: &mut [DenseStage]| {
            self.whole.push_within_norm(work, sparse, dense, norm)
        };
        self.with_sparse(sparse, |sparse| self.with_dense(dense, |dense| push(sparse, dense)))
    }

    fn job_stream(&self, stream: u32) -> u32 {
        self.whole.job_stream(stream)
    }

    fn counts_refusals(&self) -> bool {
        self.whole.counts_refusals()
    }

    fn begin(&self, stream: u32) -> Result<()> {
        self.whole.begin(stream)
    }

    fn steps_together(&self) -> bool {
        self.whole.steps_together()
    }

    fn next_step(&self, stream: u32) -> Result<Step> {
        self.whole.next_step(stream)
    }

    fn return_step(&self, stream: u32) {
        self.whole.return_step(stream);
    }

    fn finish_implicit(&self, also_empty: bool) -> Result<()> {
        self.whole.finish_implicit(also_empty)
    }

    fn abandon(&self) {
        self.whole.abandon();
    }

    fn finish(&self, stream: u32) -> Result<()> {
        self.whole.finish(stream)
    }

    fn flush(&self) -> Result<()> {
        self.whole.flush()
    }

    fn close(&self) -> Result<()> {
        self.whole.close()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::stage::Lookup;

    /// Records the tables that it is called with.
    #[derive(Default)]
    struct RecordingCommunicator(Mutex<Vec<usize>>);

    impl Communicator for RecordingCommunicator {
        fn pull_sparse(&self, stages: &mut [SparseStage], _missing: Missing) -> Result<()> {
            self.0.lock().extend(stages.iter().flat_map(|stage| stage.lookups.iter().map(|lookup| lookup.table)));
            Ok(())
        }

        fn put_rows(&self, table: usize, _keys: &[Key], _rows: &[f32]) -> Result<()> {
            self.0.lock().push(table);
            Ok(())
        }

        fn keys(&self, table: usize) -> Result<Vec<Key>> {
            Ok(vec![table as Key])
        }

        fn set_rate_factor(&self, _factor: f32) {}

        fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
            self.0.lock().extend(stages.iter().map(|stage| stage.table));
            Ok(())
        }

        fn next_step(&self, _: u32) -> Result<Step> {
            Ok(Step { number: 0, is_applied: false })
        }

        fn push(&self, _: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<Pushed> {
            self.pull_sparse(sparse, Missing::Initial)?;
            self.pull_dense(dense)?;
            Ok(Pushed::default())
        }
    }

    #[test]
    fn table_numbers_are_translated_and_restored() {
        let asked = Arc::new(RecordingCommunicator::default());
        let subset = TableSubset::new(asked.clone(), vec![4, 1], vec![0, 3]);
        let lookup = |table| Lookup { table, ..Lookup::default() };
        let mut sparse = [SparseStage { lookups: vec![lookup(1), lookup(0)], ..SparseStage::default() }];
        let mut dense = [0, 1].map(|table| DenseStage { table, ..DenseStage::default() });
        subset.pull_sparse(&mut sparse, Missing::Initial).unwrap();
        subset.pull_dense(&mut dense).unwrap();
        subset.push(WorkId::step(0, 0), &mut sparse, &mut dense).unwrap();
        subset.put_rows(0, &[], &[]).unwrap();
        assert_eq!(subset.keys(1).unwrap(), [1]);
        assert_eq!(*asked.0.lock(), [1, 4, 0, 3, 1, 4, 0, 3, 4]);
        assert_eq!(sparse[0].lookups.iter().map(|lookup| lookup.table).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(dense.map(|stage| stage.table), [0, 1]);
    }
}
