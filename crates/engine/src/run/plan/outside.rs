//! Steps whose layers another library computes: the gradients that it computes are pushed.
//!
//! N ids, D dim of a row.

use std::mem;

use openfleet_core::{Key, WorkId};
use openfleet_dist::stage::Lookup;
use openfleet_table::PushReport;

use super::Plan;
use super::lookups::Lookups;
use crate::error::{Error, Result};
use crate::graph::Var;
use crate::kernel;
use crate::memory::{Arena, ValueLocation};

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

/// Which parameters are returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// All.
    All,
    /// Those that may differ from what was returned last.
    Newer,
}

/// What is kept between the calls for one program.
#[derive(Default)]
pub(crate) struct OutsideState {
    pub(crate) lookups: Lookups,
    /// Of each parameter: the version of the values that were returned last; `None` if there are others.
    returned: Vec<Option<u64>>,
}

impl Plan {
    /// Clips and pushes gradients, as the last phase of a step.
    pub(crate) fn push_gradients(
        &self,
        arena: &mut Arena,
        outside: &mut OutsideState,
        gradients: &OutsideGradients<'_>,
        work: WorkId,
    ) -> Result<PushReport> {
        let Some(next) = outside.lookups.next() else { return self.push_trained(arena, gradients, work) };
        mem::swap(&mut arena.sparse_ahead, &mut next.stages);
        mem::swap(&mut arena.next_rows, &mut next.rows);
        let pushed = self.push_trained(arena, gradients, work);
        mem::swap(&mut arena.sparse_ahead, &mut next.stages);
        mem::swap(&mut arena.next_rows, &mut next.rows);
        pushed
    }

    /// Returns the parameters that have a gradient anew: what the caller has of them is no longer what the tables have.
    pub(crate) fn forget_returned(&self, outside: &mut OutsideState, gradients: &OutsideGradients<'_>) {
        for &(parameter, _) in &gradients.dense {
            if let Some(&Some(ValueLocation::Dense(number))) = self.locations.get(parameter.index())
                && let Some(returned) = outside.returned.get_mut(number)
            {
                *returned = None;
            }
        }
    }

    fn push_trained(&self, arena: &mut Arena, gradients: &OutsideGradients<'_>, work: WorkId) -> Result<PushReport> {
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

    /// The newest values of parameters, by name.
    pub(crate) fn parameters(
        &self,
        arena: &mut Arena,
        outside: &mut OutsideState,
        which: Returned,
    ) -> Result<Vec<(String, Vec<f32>)>> {
        let returned = &mut outside.returned;
        returned.resize(arena.dense.len(), None);
        for (stage, returned) in arena.dense.iter().zip(&mut *returned) {
            // Version 0: there are no values yet, or they are pulled anew.
            if stage.version == 0 || which == Returned::All {
                *returned = None;
            }
        }
        self.communicator.pull_dense(&mut arena.dense)?;
        let named = self.dense_names.iter().zip(&arena.dense).zip(returned);
        let wanted = named.filter_map(|((name, stage), returned)| {
            let version = Some(stage.version);
            (mem::replace(returned, version) != version).then(|| (name.clone(), stage.values.clone()))
        });
        Ok(wanted.collect())
    }

    pub(super) fn not_known(&self, op: &'static str, var: Var, expected: &str) -> Error {
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
