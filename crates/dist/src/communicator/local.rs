//! Local training without servers: the tables are in this process, and every call goes straight to them.
//!
//! Several training threads share the tables. A dense table applies one gradient at a time and returns the newest values in the
//! same call; a sparse table locks one shard at a time. No thread ever reads a half-written parameter, and with one thread
//! training is exactly sequential.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use openfleet_core::{Key, WorkId};
use openfleet_table::sparse::{Existing, Scratch};
use openfleet_table::{DenseTable, PushReport, SparseTable};

use super::{Communicator, Missing, Pushed, Step};
use crate::error::{Error, Result};
use crate::stage::{Counts, DenseStage, SparseStage};

/// Tables in this process, by the positions the stages use.
pub struct Local {
    sparse: Vec<(String, Arc<SparseTable>)>,
    dense: Vec<(String, Arc<DenseTable>)>,
    /// The bits of [`Communicator::set_rate_factor`].
    rate_factor: AtomicU32,
}

impl Default for Local {
    fn default() -> Self {
        Local::new(Vec::new(), Vec::new())
    }
}

impl Local {
    /// Tables with their names, in the order the stages refer to them.
    pub fn new(sparse: Vec<(String, Arc<SparseTable>)>, dense: Vec<(String, Arc<DenseTable>)>) -> Self {
        Local { sparse, dense, rate_factor: AtomicU32::new(1.0f32.to_bits()) }
    }

    /// The sparse tables with their names.
    pub(super) fn sparse(&self) -> &[(String, Arc<SparseTable>)] {
        &self.sparse
    }

    /// What multiplies the learning rates of the next push.
    pub(super) fn rate_factor(&self) -> f32 {
        f32::from_bits(self.rate_factor.load(Ordering::Relaxed))
    }

    /// The dense tables with their names.
    pub(super) fn dense(&self) -> &[(String, Arc<DenseTable>)] {
        &self.dense
    }
}

impl Communicator for Local {
    fn pull_sparse(&self, stages: &mut [SparseStage], missing: Missing) -> Result<()> {
        for stage in stages {
            for lookup in &mut stage.lookups {
                let (name, table) = &self.sparse[lookup.table];
                table
                    .pull(stage.unique.keys(), missing, &mut lookup.rows, &mut stage.scratch)
                    .map_err(|source| Error::Table { action: "pulling from", table: name.clone(), source })?;
            }
        }
        Ok(())
    }

    fn set_rate_factor(&self, factor: f32) {
        self.rate_factor.store(factor.to_bits(), Ordering::Relaxed);
    }

    fn pull_dense(&self, stages: &mut [DenseStage]) -> Result<()> {
        for stage in stages {
            let (name, table) = &self.dense[stage.table];
            table.pull_if_newer(&mut stage.version, &mut stage.values).map_err(|source| Error::Table {
                action: "pulling from",
                table: name.clone(),
                source,
            })?;
        }
        Ok(())
    }

    fn put_rows(&self, table: usize, keys: &[Key], rows: &[f32]) -> Result<()> {
        let (name, table) = &self.sparse[table];
        table.put(keys, rows, Existing::Keep, &mut Scratch::default()).map_err(|source| Error::Table {
            action: "putting rows into",
            table: name.clone(),
            source,
        })
    }

    fn keys(&self, table: usize) -> Result<Vec<Key>> {
        let (_, table) = &self.sparse[table];
        Ok((0..table.shards()).flat_map(|shard| table.keys_of(shard)).collect())
    }

    fn counts_refusals(&self) -> bool {
        true
    }

    /// Nothing is ever repeated here, so the caller counts its own steps.
    fn next_step(&self, _stream: u32) -> Result<Step> {
        Ok(Step { number: 0, is_applied: false })
    }

    fn push(&self, _work: WorkId, sparse: &mut [SparseStage], dense: &mut [DenseStage]) -> Result<Pushed> {
        let mut report = PushReport::default();
        let rate_factor = self.rate_factor();
        for stage in sparse {
            let show_click = stage.counts.as_ref().map(Counts::view);
            for lookup in stage.lookups.iter().filter(|lookup| lookup.trained) {
                let (name, table) = &self.sparse[lookup.table];
                let (keys, gradients) = (stage.unique.keys(), &lookup.gradients);
                let pushed = table.push_at(keys, gradients, show_click, rate_factor, &mut stage.scratch);
                report.merge(pushed.map_err(|source| Error::Table {
                    action: "pushing to",
                    table: name.clone(),
                    source,
                })?);
            }
        }
        for stage in dense.iter_mut().filter(|stage| stage.trained) {
            let (name, table) = &self.dense[stage.table];
            let pushed = table.push_and_pull_at(&stage.gradient, rate_factor, &mut stage.version, &mut stage.values);
            report.merge(pushed.map_err(|source| Error::Table {
                action: "pushing to",
                table: name.clone(),
                source,
            })?);
        }
        Ok(report.into())
    }
}
