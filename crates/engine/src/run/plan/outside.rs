//! Steps whose layers another library computes: rows are looked up for it, and the gradients that it computes are pushed.
//!
//! U distinct ids, N ids, D dim of a row.

use openfleet_core::{Key, Unique, WorkId};
use openfleet_dist::communicator::Missing;
use openfleet_dist::stage::{Lookup, SparseStage};
use openfleet_table::PushReport;

use super::Plan;
use super::prepare::check_vocabulary;
use crate::error::{Error, Result};
use crate::graph::Var;
use crate::kernel;
use crate::memory::{Arena, ValueLocation};

/// The rows of some ids of one table.
#[derive(Debug, Default)]
pub struct LookedUp {
    /// U: the distinct ids, in the order of their first occurrence.
    pub keys: Vec<Key>,
    /// N: for each id, the position of its row.
    pub positions: Vec<u32>,
    /// U x D: the rows.
    pub rows: Vec<f32>,
    /// D.
    pub dim: usize,
}

/// The gradients of one step.
#[derive(Debug)]
pub struct OutsideGradients<'a> {
    /// Multiplies the learning rates of all tables and parameters in this step.
    pub rate_factor: f32,
    /// Tables, with N ids and the gradients of their rows, N x D. Those of equal ids are added up.
    pub rows: Vec<(Var, &'a [Key], &'a [f32])>,
    /// Parameters with their gradients.
    ///
    /// The others rest in this step, and so do other tables: their moments and step counters stay as they are. On ranks without
    /// servers, which apply the same step, they have a gradient of 0.
    pub dense: Vec<(Var, &'a [f32])>,
}

impl Plan {
    /// Pulls the rows of the ids of some tables, in one request to each server. `stages` is working memory, kept between calls.
    pub(crate) fn look_up(
        &self,
        stages: &mut Vec<SparseStage>,
        wanted: &[(Var, &[Key])],
        missing: Missing,
    ) -> Result<Vec<LookedUp>> {
        let mut used = Vec::with_capacity(wanted.len());
        for &(table, ids) in wanted {
            let (number, lookup) = self.stage_of("look_up", table)?;
            let spec = &self.stages[number];
            let feed = &self.feeds[spec.feeds[0]];
            if let Some(vocabulary) = feed.vocabulary {
                check_vocabulary(&feed.name, vocabulary, ids, &[0, ids.len() as u32])?;
            }
            let (table, dim) = spec.lookups[lookup];
            let kept = stages.iter().position(|stage| stage.lookups[0].table == table);
            let mut stage = kept.map_or_else(|| self.stage_of_one(table, dim), |at| stages.swap_remove(at));
            stage.unique.start(ids.len());
            stage.unique.add_salted(ids, spec.salts[0]);
            stage.lookups[0].rows.resize(stage.unique.keys().len() * dim, 0.0);
            used.push(stage);
        }
        let pulled = self.communicator.pull_sparse(&mut used, missing);
        let found = used.iter_mut().map(|stage| LookedUp {
            keys: stage.unique.keys().to_vec(),
            positions: stage.unique.inverse().to_vec(),
            rows: std::mem::take(&mut stage.lookups[0].rows),
            dim: stage.lookups[0].dim,
        });
        let found = found.collect();
        stages.append(&mut used);
        pulled?;
        Ok(found)
    }

    fn stage_of_one(&self, table: usize, dim: usize) -> SparseStage {
        let lookup = Lookup { table, dim, trained: self.trains, rows: Vec::new(), gradients: Vec::new() };
        SparseStage { unique: Unique::new(), lookups: vec![lookup], counts: None, scratch: Default::default() }
    }

    /// Clips and pushes gradients, as the last phase of a step.
    pub(crate) fn push_gradients(
        &self,
        arena: &mut Arena,
        gradients: &OutsideGradients<'_>,
        work: WorkId,
    ) -> Result<PushReport> {
        let trained = arena.dense.iter().map(|stage| stage.trained).collect::<Vec<_>>();
        let trained_rows = each_lookup(arena).map(|lookup| lookup.trained).collect::<Vec<_>>();
        let pushed = self.push_filled(arena, gradients, work);
        arena.dense.iter_mut().zip(trained).for_each(|(stage, trained)| stage.trained = trained);
        each_lookup(arena).zip(trained_rows).for_each(|(lookup, trained)| lookup.trained = trained);
        pushed
    }

    fn push_filled(&self, arena: &mut Arena, gradients: &OutsideGradients<'_>, work: WorkId) -> Result<PushReport> {
        self.communicator.set_rate_factor(gradients.rate_factor);
        let filled = self.fill_gradients(arena, gradients).and_then(|()| match &self.replicated {
            // Ranks without data apply the step too, and do not know its rates.
            Some(_) if gradients.rate_factor != 1.0 => Err(Error::Input {
                op: "push_gradients",
                expected: "the first learning rate in a job without servers".into(),
                got: format!("{} times that rate", gradients.rate_factor),
            }),
            Some(replicated) => Ok(replicated.begin_step(&arena.sparse)?),
            None => Ok(()),
        });
        if filled.is_err() {
            self.communicator.return_step(work.stream);
        }
        filled?;
        self.push_or_return(arena, work)
    }

    fn fill_gradients(&self, arena: &mut Arena, gradients: &OutsideGradients<'_>) -> Result<()> {
        for (spec, stage) in self.stages.iter().zip(&mut arena.sparse) {
            stage.unique.start(0);
            for lookup in &mut stage.lookups {
                lookup.gradients.clear();
                lookup.trained &= self.replicated.is_some();
            }
            stage.counts = spec.counts.map(|_| Default::default());
        }
        for &(table, ids, values) in &gradients.rows {
            let (number, lookup) = self.stage_of("push_gradients", table)?;
            let stage = &mut arena.sparse[number];
            let dim = stage.lookups[lookup].dim;
            stage.lookups[lookup].trained = true;
            self.check_length(table, ids.len() * dim, values.len())?;
            let before = stage.unique.inverse().len();
            stage.unique.add_salted(ids, self.stages[number].salts[0]);
            let sums = &mut stage.lookups[lookup].gradients;
            sums.resize(stage.unique.keys().len() * dim, 0.0);
            for (gradient, &row) in values.chunks_exact(dim).zip(&stage.unique.inverse()[before..]) {
                kernel::add(gradient, &mut sums[row as usize * dim..][..dim]);
            }
        }
        for stage in &mut arena.sparse {
            // Tables of one slot share its keys, whichever of them has gradients.
            let keys = stage.unique.keys().len();
            stage.lookups.iter_mut().for_each(|lookup| lookup.gradients.resize(keys * lookup.dim, 0.0));
            if let Some(counts) = &mut stage.counts {
                counts.show.resize(keys, 0.0);
                counts.click.resize(keys, 0.0);
            }
        }
        for stage in &mut arena.dense {
            stage.gradient.fill(0.0);
            stage.trained &= self.replicated.is_some();
        }
        for &(parameter, values) in &gradients.dense {
            let Some(&Some(ValueLocation::Dense(number))) = self.locations.get(parameter.index()) else {
                return Err(self.not_known("push_gradients", parameter, "a parameter of the program"));
            };
            self.check_length(parameter, arena.dense[number].values.len(), values.len())?;
            arena.dense[number].gradient.copy_from_slice(values);
            arena.dense[number].trained = true;
        }
        Ok(())
    }

    /// The newest values of all parameters, by name.
    pub(crate) fn parameters(&self, arena: &mut Arena) -> Result<Vec<(String, Vec<f32>)>> {
        self.communicator.pull_dense(&mut arena.dense)?;
        let named = self.dense_names.iter().zip(&arena.dense);
        Ok(named.map(|(name, stage)| (name.clone(), stage.values.clone())).collect())
    }

    /// The stage and lookup of a table.
    fn stage_of(&self, op: &'static str, table: Var) -> Result<(usize, usize)> {
        match self.locations.get(table.index()) {
            Some(&Some(ValueLocation::Rows { stage, lookup })) => Ok((stage, lookup)),
            _ => Err(self.not_known(op, table, "a sparse table of the program")),
        }
    }

    fn not_known(&self, op: &'static str, var: Var, expected: &str) -> Error {
        Error::Input { op, expected: expected.into(), got: format!("`{}`", self.name(var)) }
    }

    fn check_length(&self, var: Var, expected: usize, got: usize) -> Result<()> {
        if got == expected {
            return Ok(());
        }
        let expected = format!("{expected} numbers as the gradient of `{}`", self.name(var));
        Err(Error::Input { op: "push_gradients", expected, got: got.to_string() })
    }
}

fn each_lookup(arena: &mut Arena) -> impl Iterator<Item = &mut Lookup> {
    arena.sparse.iter_mut().flat_map(|stage| &mut stage.lookups)
}
