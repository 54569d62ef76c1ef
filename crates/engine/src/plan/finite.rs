//! Losses and gradients that are not finite: found on the worker, before anything is sent.
//!
//! A table refuses such gradients too, but one on a server cannot say whose they are, and the mean over all workers of a step
//! would be refused as a whole because of one of them. Each name is told once; the report counts all.

use openfleet_core::{Batch, Column, WorkId};
use openfleet_table::{NonFinite, PushReport, clip};
use tracing::warn;

use super::Plan;
use crate::arena::Arena;
use crate::error::{Error, Result};

/// A gradient that no table takes.
pub(super) enum Unusable {
    /// Of a parameter, by its stage.
    Parameter(usize),
    /// Of a row: stage, lookup, and which of the unique keys.
    Row(usize, usize, usize),
}

impl Plan {
    /// A loss that is not finite is told once, with the field that it may come from. Under [`NonFinite::Stop`] it is an error,
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
        if self.is_new(name) {
            let cause = self.bad_field(arena, batch);
            warn!("the loss `{name}` is {value} at step {step}{cause}; this is said once");
        }
        Ok(())
    }

    /// The first field of floats that has a number which is not finite.
    fn bad_field(&self, arena: &Arena, batch: &Batch) -> String {
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

    /// Gradients that no table takes. Under [`NonFinite::Stop`] the first is an error, before anything of the step is applied.
    pub(super) fn unusable_gradients(&self, arena: &Arena, work: WorkId) -> Result<Vec<Unusable>> {
        let mut unusable = Vec::new();
        for (at, stage) in arena.dense.iter().enumerate().filter(|(_, stage)| stage.trained) {
            if !clip::is_usable(&stage.gradient) {
                self.tell(&self.dense_names[at], None, work)?;
                unusable.push(Unusable::Parameter(at));
            }
        }
        for (number, stage) in arena.sparse.iter().enumerate() {
            let trained = stage.lookups.iter().enumerate().filter(|(_, lookup)| lookup.trained);
            for (at, lookup) in trained.filter(|(_, lookup)| !clip::is_usable(&lookup.gradients)) {
                for (row, (gradient, &key)) in
                    lookup.gradients.chunks_exact(lookup.dim).zip(stage.unique.keys()).enumerate()
                {
                    if !clip::is_usable(gradient) {
                        self.tell(&self.sparse_names[lookup.table], Some(key), work)?;
                        unusable.push(Unusable::Row(number, at, row));
                    }
                }
            }
        }
        Ok(unusable)
    }

    /// Sends what is left of a step without these gradients. Tables that are here refuse and count them by themselves.
    pub(super) fn push_without(&self, unusable: &[Unusable], arena: &mut Arena, work: WorkId) -> Result<PushReport> {
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
        for one in unusable {
            match (one, limit) {
                (&Unusable::Parameter(at), Some(limit)) => within(&mut arena.dense[at].gradient, limit),
                (&Unusable::Parameter(at), None) => arena.dense[at].trained = false,
                (&Unusable::Row(stage, lookup, row), limit) => {
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
        for one in unusable {
            if let Unusable::Parameter(at) = one {
                arena.dense[*at].trained = true;
            }
        }
        let mut report = pushed?;
        report.non_finite += unusable.len();
        Ok(report)
    }

    fn tell(&self, name: &str, key: Option<u64>, work: WorkId) -> Result<()> {
        let step = work.last_step;
        let of = key.map_or_else(|| format!("`{name}`"), |key| format!("row {key} of `{name}`"));
        match self.non_finite {
            NonFinite::Stop => return Err(Error::NotFiniteGradient { of, step }),
            NonFinite::Skip if self.is_new(name) => {
                warn!(
                    "the gradient of {of} is not finite at step {step}: it is left out; this is said once for `{name}`"
                );
            }
            NonFinite::Clip(limit) if self.is_new(name) => {
                warn!(
                    "the gradient of {of} is not finite at step {step}: clipped to {limit}; this is said once for `{name}`"
                );
            }
            NonFinite::Skip | NonFinite::Clip(_) => {}
        }
        Ok(())
    }

    /// Whether nothing was told of it yet.
    fn is_new(&self, name: &str) -> bool {
        let mut told = self.told.lock();
        !told.contains(name) && told.insert(name.to_owned())
    }
}
