//! A worker that computes nothing: it pulls rows, waits, and pushes gradients, through the communicator of any mode.
//!
//! What servers and the network cost can then be measured without the cost of computing. `openfleet plan` calibrates with it,
//! and the bench `growth` measures whole jobs with it. It knows no model: a [`Load`] has the tables, and how many rows of them
//! a batch reads. A batch is pulled and pushed as in a training step of the engine.

use std::sync::Arc;
use std::time::Duration;

use openfleet_core::key::mix;
use openfleet_core::{Key, Unique, WorkId};
use openfleet_dist::communicator::{Communicator, Missing, PullInFlight};
use openfleet_dist::stage::{DenseStage, Lookup, SparseStage};
use openfleet_dist::{Cluster, Result};
use openfleet_table::{DenseSpec, SparseSpec};

/// The tables of a job, and what a batch reads and updates.
#[derive(Debug, Clone)]
pub struct Load {
    /// The sparse tables.
    pub sparse: Vec<(String, SparseSpec)>,
    /// The dense parameters.
    pub dense: Vec<(String, DenseSpec)>,
    /// The lists of distinct keys of a batch.
    pub stages: Vec<LoadStage>,
    /// Rows of each sparse table. Batches read some of them often and most of them rarely.
    pub rows: u64,
}

/// Distinct keys of a batch, and the tables whose rows have these keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadStage {
    /// Distinct keys per batch; at most [`Load::rows`] are used.
    pub keys: usize,
    /// Positions in [`Load::sparse`].
    pub tables: Vec<usize>,
}

/// Keys of one request while a table is filled: few enough that async mode does not take it for a pull over a slow link.
const FILLED_AT_ONCE: u64 = 4_000;

/// A worker of a [`Load`].
pub struct LoadWorker {
    communicator: Arc<dyn Communicator>,
    /// Batches, used again and again: for each of them the keys of every stage.
    batches: Vec<Vec<Vec<Key>>>,
    next: usize,
    sparse: Vec<SparseStage>,
    /// The stages of the next batch, if its rows are requested ahead.
    sparse_ahead: Vec<SparseStage>,
    pull_ahead: Option<PullInFlight>,
    dense: Vec<DenseStage>,
    load: Load,
}

impl LoadWorker {
    /// Creates the tables on the servers, unless another worker has, and draws `batches` different batches. Workers with
    /// different seeds draw different ones.
    pub fn new(cluster: &Cluster, load: &Load, batches: usize, seed: u64) -> Result<Self> {
        let floats = |spec: &DenseSpec| spec.shape.iter().product::<usize>();
        let dense: Vec<_> =
            load.dense.iter().map(|(name, spec)| (name.clone(), spec.clone(), vec![0.01; floats(spec)])).collect();
        let communicator = cluster.communicator(&load.sparse, &dense)?;
        let stage = |table: usize, floats: usize| DenseStage {
            table,
            values: vec![0.0; floats],
            gradient: (0..floats).map(|at| 1e-3 * (1 + at % 7) as f32).collect(),
            trained: true,
            version: 0,
        };
        let dense = load.dense.iter().enumerate().map(|(table, (_, spec))| stage(table, floats(spec))).collect();
        let draw = |batch: usize| {
            let stages = load.stages.iter().enumerate();
            stages.map(|(at, stage)| draw(load.rows, stage.keys, mix(seed ^ mix((batch << 8 | at) as u64)))).collect()
        };
        let batches = (0..batches.max(1)).map(draw).collect();
        let (sparse, sparse_ahead) = (stages_of(load), stages_of(load));
        let load = load.clone();
        Ok(LoadWorker { communicator, batches, next: 0, sparse, sparse_ahead, pull_ahead: None, dense, load })
    }

    /// Creates this worker's part of all rows.
    pub fn fill(&self, rank: u64, workers: u64) -> Result<()> {
        let share = self.load.rows.div_ceil(workers);
        let end = (share * (rank + 1)).min(self.load.rows);
        let mut first = share * rank;
        while first < end {
            let last = (first + FILLED_AT_ONCE).min(end);
            let keys: Vec<Key> = (first..last).map(mix).collect();
            let mut stages = stages_of(&self.load);
            for stage in &mut stages {
                stage.unique.start(keys.len());
                stage.unique.add(&keys);
                stage.lookups.iter_mut().for_each(|lookup| lookup.rows.resize(keys.len() * lookup.dim, 0.0));
            }
            self.communicator.pull_sparse(&mut stages, Missing::Create)?;
            first = last;
        }
        Ok(())
    }

    /// Trains one batch, with a wait where a worker would compute.
    pub fn batch(&mut self, wait: Duration) -> Result<()> {
        let work = WorkId::step(0, self.communicator.next_step(0)?.number);
        match self.pull_ahead.take() {
            Some(pull) => {
                std::mem::swap(&mut self.sparse, &mut self.sparse_ahead);
                self.communicator.end_pull(pull, &mut self.sparse)?;
            }
            None => {
                prepare(&self.batches, &mut self.next, &mut self.sparse);
                self.communicator.pull_sparse(&mut self.sparse, Missing::Create)?;
            }
        }
        self.communicator.pull_dense(&mut self.dense)?;
        if self.communicator.overlaps_pulls() {
            prepare(&self.batches, &mut self.next, &mut self.sparse_ahead);
            self.pull_ahead = self.communicator.begin_pull(&self.sparse_ahead)?;
            if self.pull_ahead.is_none() {
                // This batch is still to be pulled when it is needed.
                self.next = (self.next + self.batches.len() - 1) % self.batches.len();
            }
        }
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        self.communicator.push(work, &mut self.sparse, &mut self.dense).map(drop)
    }

    /// Pulls the rows of the next batch, and nothing else.
    pub fn pull(&mut self) -> Result<()> {
        prepare(&self.batches, &mut self.next, &mut self.sparse);
        self.communicator.pull_sparse(&mut self.sparse, Missing::Create)
    }

    /// Begins a pass: in modes whose workers step together, waits until all of them have begun one.
    pub fn begin(&self) -> Result<()> {
        self.communicator.begin(0)
    }

    /// Ends the pass: other workers no longer wait for this one, and everything that is queued is sent.
    pub fn finish(&mut self) -> Result<()> {
        self.pull_ahead = None;
        self.communicator.finish(0)
    }
}

/// Puts the keys of the next batch into the stages.
fn prepare(batches: &[Vec<Vec<Key>>], next: &mut usize, sparse: &mut [SparseStage]) {
    for (keys, stage) in batches[*next].iter().zip(sparse) {
        stage.unique.start(keys.len());
        stage.unique.add(keys);
    }
    *next = (*next + 1) % batches.len();
}

/// Stages with memory for a batch.
fn stages_of(load: &Load) -> Vec<SparseStage> {
    let stage = |stage: &LoadStage| {
        let keys = distinct_keys(load.rows, stage.keys);
        let lookup = |&table: &usize| {
            let dim = load.sparse[table].1.dim;
            Lookup { table, dim, trained: true, rows: vec![0.0; keys * dim], gradients: vec![1e-3; keys * dim] }
        };
        SparseStage { lookups: stage.tables.iter().map(lookup).collect(), ..SparseStage::default() }
    };
    load.stages.iter().map(stage).collect()
}

fn distinct_keys(rows: u64, keys: usize) -> usize {
    keys.min(usize::try_from(rows).unwrap_or(usize::MAX))
}

/// Draws ids until `keys` of them are distinct. The eighth power of a uniform number makes a few ids frequent and most rare.
fn draw(rows: u64, keys: usize, seed: u64) -> Vec<Key> {
    let keys = distinct_keys(rows, keys);
    let mut unique = Unique::new();
    unique.start(keys);
    let mut state = seed;
    // Ids that are drawn again and again would take long to complete the last few of a small table.
    let mut attempts = 64 * keys as u64;
    let mut following = 0;
    while unique.keys().len() < keys {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let uniform = (mix(state) >> 11) as f64 / (1u64 << 53) as f64;
        let id = match attempts {
            0 => {
                following += 1;
                following - 1
            }
            _ => {
                attempts -= 1;
                (uniform.powi(8) * rows as f64) as u64
            }
        };
        unique.add(&[mix(id)]);
    }
    unique.keys().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_as_many_distinct_keys_as_asked_for_or_all_there_are() {
        for (rows, keys, expected) in [(1_000_000, 500, 500), (600, 500, 500), (7, 500, 7)] {
            let drawn = draw(rows, keys, 3);
            let mut distinct = drawn.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!((drawn.len(), distinct.len()), (expected, expected), "{rows} rows");
        }
    }
}
