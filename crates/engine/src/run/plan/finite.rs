//! Finds losses and gradients that are not finite on the worker, before anything is sent.
//!
//! A table refuses such gradients too, but a table on a server cannot say which worker they came from, and one bad gradient would
//! make it refuse the mean of all workers. Each name is logged once; the report counts all of them.

use openfleet_core::{Batch, Column, WorkId};
use openfleet_dist::communicator::Pushed;
use openfleet_table::{NonFinite, clip};
use tracing::warn;

use super::Plan;
use crate::error::{Error, Result};
use crate::memory::Arena;

/// A gradient that is not pushed because it is not finite.
pub(super) enum RefusedGradient {
    /// The gradient of a parameter, by its stage.
    Parameter(usize),
    /// The gradient of a row: stage, lookup, and index among the unique keys.
    Row(usize, usize, usize),
}

impl Plan {
    /// Logs a loss that is not finite, once, with the field that may have caused it. Under [`NonFinite::Stop`] it is an error,
    /// and nothing of the step is applied.
    pub(super) fn check_loss(&self, arena: &Arena, batch: &Batch, work: WorkId) -> Result<()> {
        let Some((buffer, name)) = &self.loss else { return Ok(()) };
        let Some(&value) = arena.buffers[*buffer].floats.first().filter(|value| !value.is_finite()) else {
            return Ok(());
        };
        let step = work.last_step;
        if self.trains && self.non_finite == NonFinite::Stop {
            return Err(Error::NotFinite { name: name.clone(), value: value.into(), step });
        }
        if self.is_first_warning(name) {
            let cause = self.describe_bad_field(arena, batch);
            warn!("the loss `{name}` is {value} at step {step}{cause}; logged once");
        }
        Ok(())
    }

    /// Names the first field of floats that contains a value that is not finite; empty if there is none.
    fn describe_bad_field(&self, arena: &Arena, batch: &Batch) -> String {
        let fields = self.feeds.iter().zip(&arena.feeds).filter_map(|(feed, &column)| match &batch.columns[column] {
            Column::Floats { values, .. } => Some((&feed.name, values)),
            Column::Ids { .. } => None,
        });
        for (name, values) in fields {
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                let row = at * batch.rows / values.len();
                return format!(": field `{name}` is {} in row {row} of the batch", values[at]);
            }
        }
        String::new()
    }

    /// The gradients that are not finite. Under [`NonFinite::Stop`] the first one is an error, before anything of the step is
    /// applied.
    pub(super) fn refused_gradients(&self, arena: &Arena, work: WorkId) -> Result<Vec<RefusedGradient>> {
        let mut refused = Vec::new();
        for (at, stage) in arena.dense.iter().enumerate().filter(|(_, stage)| stage.trained) {
            if !clip::is_usable(&stage.gradient) {
                self.warn_or_stop(&self.dense_names[at], None, work)?;
                refused.push(RefusedGradient::Parameter(at));
            }
        }
        for (number, stage) in arena.sparse.iter().enumerate() {
            let trained = stage.lookups.iter().enumerate().filter(|(_, lookup)| lookup.trained);
            for (at, lookup) in trained.filter(|(_, lookup)| !clip::is_usable(&lookup.gradients)) {
                for (row, (gradient, &key)) in
                    lookup.gradients.chunks_exact(lookup.dim).zip(stage.unique.keys()).enumerate()
                {
                    if !clip::is_usable(gradient) {
                        self.warn_or_stop(&self.sparse_names[lookup.table], Some(key), work)?;
                        refused.push(RefusedGradient::Row(number, at, row));
                    }
                }
            }
        }
        Ok(refused)
    }

    /// Pushes a step without these gradients. Tables in this process refuse and count them themselves.
    pub(super) fn push_without(&self, refused: &[RefusedGradient], arena: &mut Arena, work: WorkId) -> Result<Pushed> {
        if self.communicator.counts_refusals() {
            return self.push_clipped(arena, work);
        }
        let limit = match self.non_finite {
            NonFinite::Clip(limit) => Some(limit),
            NonFinite::Skip | NonFinite::Stop => None,
        };
        let within = |gradient: &mut [f32], limit: f32| {
            gradient.iter_mut().for_each(|g| *g = if g.is_nan() { 0.0 } else { g.clamp(-limit, limit) });
        };
        for one in refused {
            match (one, limit) {
                (&RefusedGradient::Parameter(at), Some(limit)) => within(&mut arena.dense[at].gradient, limit),
                (&RefusedGradient::Parameter(at), None) => arena.dense[at].trained = false,
                (&RefusedGradient::Row(stage, lookup, row), limit) => {
                    let lookup = &mut arena.sparse[stage].lookups[lookup];
                    let gradient = &mut lookup.gradients[row * lookup.dim..][..lookup.dim];
                    match limit {
                        Some(limit) => within(gradient, limit),
                        None => gradient.fill(0.0),
                    }
                }
            }
        }
        let pushed = self.push_clipped(arena, work);
        for one in refused {
            if let RefusedGradient::Parameter(at) = one {
                arena.dense[*at].trained = true;
            }
        }
        let mut pushed = pushed?;
        pushed.report.non_finite += refused.len();
        Ok(pushed)
    }

    fn warn_or_stop(&self, name: &str, key: Option<u64>, work: WorkId) -> Result<()> {
        let step = work.last_step;
        let of = key.map_or_else(|| format!("`{name}`"), |key| format!("row {key} of `{name}`"));
        match self.non_finite {
            NonFinite::Stop => return Err(Error::NotFiniteGradient { of, step }),
            NonFinite::Skip if self.is_first_warning(name) => {
                warn!("the gradient of {of} is not finite at step {step}: it is skipped; logged once for `{name}`");
            }
            NonFinite::Clip(limit) if self.is_first_warning(name) => {
                warn!(
                    "the gradient of {of} is not finite at step {step}: clipped to {limit}; logged once for `{name}`"
                );
            }
            NonFinite::Skip | NonFinite::Clip(_) => {}
        }
        Ok(())
    }

    /// Whether nothing was logged about this name yet.
    pub(super) fn is_first_warning(&self, name: &str) -> bool {
        let mut warned = self.warned.lock();
        !warned.contains(name) && warned.insert(name.to_owned())
    }
}
