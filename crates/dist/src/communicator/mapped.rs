//! For prediction: sparse rows are read from the memory-mapped files of a saved model; dense values are loaded once.
//!
//! Nothing changes, so nothing is locked: any number of threads can read at the same time.

use openfleet_core::{Key, WorkId};
use openfleet_table::checkpoint::MappedTable;

use super::{Communicator, Missing, Pushed, Step};
use crate::error::{Error, Result};
use crate::stage::{DenseStage, SparseStage};

/// Saved tables, by the positions the stages use.
#[derive(Debug, Default)]
pub struct Mapped {
    sparse: Vec<(String, MappedTable)>,
    dense: Vec<(String, Vec<f32>)>,
}

/// Version of all dense values: a stage with this version is up to date.
const VERSION: u64 = 1;

impl Mapped {
    /// Tables and values with their names, in the order the stages refer to them.
    pub fn new(sparse: Vec<(String, MappedTable)>, dense: Vec<(String, Vec<f32>)>) -> Self {
        Mapped { sparse, dense }
    }
}

impl Communicator for Mapped {
    /// No row is ever created: `missing` makes no difference.
    fn pull_sparse(&self, stages: &mut [SparseStage], _missing: Missing) -> Result<()> {
        for stage in stages {
            for lookup in &mut stage.lookups {
                let (name, table) = &self.sparse[lookup.table];
                table.pull(stage.unique.keys(), &mut lookup.rows).map_err(|source| Error::Table {
                    action: "pulling from",
                    table: name.clone(),
                    source,
                })?;
            }
        }
        Ok(())
    }

    /// Nothing is pushed.
    fn set_rate_factor(&self, _factor: f32) {}

    fn put_rows(&self, table: usize, _keys: &[Key], _rows: &[f32]) -> Result<()> {
        Err(Error::ReadOnly { table: self.sparse[table].0.clone() })
    }

    fn keys(&self, table: usize) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        self.sparse[table].1.for_each(|key, _| keys.push(key));
        Ok(keys)
    }

    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        for stage in stages.iter_mut().filter(|stage| stage.version != VERSION) {
            let (_, values) = &self.dense[stage.table];
            stage.values.clear();
            stage.values.extend_from_slice(values);
            stage.version = VERSION;
        }
        Ok(())
    }

    /// Nothing is ever repeated here, so the caller counts its own steps.
    fn next_step(&self, _stream: u32) -> Result<Step> {
        Ok(Step { number: 0, is_applied: false })
    }

    fn push(&self, _work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<Pushed> {
        let rows = sparse.iter().flat_map(|stage| &stage.lookups).map(|lookup| &self.sparse[lookup.table].0);
        match rows.chain(dense.iter().map(|stage| &self.dense[stage.table].0)).next() {
            Some(table) => Err(Error::ReadOnly { table: table.clone() }),
            None => Ok(Pushed::default()),
        }
    }
}
