//! Steps of a collective job: gradients are reduced over the ranks before they are clipped and applied.

use std::sync::Arc;
use std::time::Instant;

use openfleet_core::WorkId;
use openfleet_dist::collective::{Call, StepOfOthers};
use openfleet_dist::communicator::{Replicated, StepValues};
use parking_lot::Mutex;

use super::Plan;
use crate::error::{Error, Result};
use crate::memory::Arena;
use crate::value::Elements;

impl Plan {
    /// The tables of a collective job, if this is one.
    pub(crate) fn replicated(&self) -> Option<&Arc<Replicated>> {
        self.replicated.as_ref()
    }

    /// Replaces the gradients of a step by those of all ranks. Returns whether they are to be applied now.
    pub(super) fn reduce(&self, arena: &mut Arena, has_data: bool) -> Result<bool> {
        let Some(replicated) = &self.replicated else { return Ok(true) };
        let started = Instant::now();
        let mut statistics = std::mem::take(&mut arena.statistics);
        statistics.clear();
        for state in &self.states {
            if let Elements::F32(values) = state.lock().elements() {
                statistics.extend_from_slice(values);
            }
        }
        if !has_data {
            statistics.fill(0.0);
        }
        let loss = self.loss.as_ref().and_then(|(buffer, _)| arena.buffers[*buffer].floats.first().copied());
        let loss = has_data.then(|| loss.unwrap_or(0.0));
        let values = StepValues { loss, statistics: &mut statistics };
        let applies = replicated.reduce(&mut arena.sparse, &mut arena.dense, values)?;
        self.set_statistics(&statistics);
        arena.statistics = statistics;
        let elapsed = started.elapsed();
        arena.times.push += elapsed;
        arena.times.waited += elapsed;
        Ok(applies)
    }

    fn set_statistics(&self, statistics: &[f32]) {
        let mut rest = statistics;
        for state in &self.states {
            if let Elements::F32(values) = state.lock().elements_mut() {
                let (own, after) = rest.split_at(values.len());
                values.copy_from_slice(own);
                rest = after;
            }
        }
    }

    /// Takes part in a step of other ranks without data, and applies its update.
    fn step_of_others(&self, arena: &mut Arena, calls: Vec<Call>) -> Result<()> {
        let Some(replicated) = &self.replicated else { return Ok(()) };
        replicated.begin_step_of_others(calls)?;
        for (spec, stage) in self.stages.iter().zip(&mut arena.sparse) {
            stage.unique.start(0);
            stage.lookups.iter_mut().for_each(|lookup| lookup.gradients.clear());
            stage.counts = spec.counts.map(|_| Default::default());
        }
        arena.dense.iter_mut().for_each(|stage| stage.gradient.fill(0.0));
        if self.reduce(arena, false)? {
            self.apply(arena, WorkId::step(0, 0))?;
        }
        Ok(())
    }

    /// Takes part in an average of the parameters of other ranks.
    fn average_of_others(&self, arena: &mut Arena, calls: &[Call]) -> Result<()> {
        let Some(replicated) = &self.replicated else { return Ok(()) };
        arena.statistics.clear();
        arena.statistics.resize(self.statistics, 0.0);
        replicated.take_part_in_average(calls, &mut arena.statistics)?;
        self.set_statistics(&arena.statistics);
        Ok(())
    }
}

/// What a rank without data does in the steps of the others.
pub(crate) struct StepsWithoutData {
    plan: Arc<Plan>,
    arena: Mutex<Arena>,
}

impl StepsWithoutData {
    pub(crate) fn new(plan: Arc<Plan>) -> Self {
        let arena = Mutex::new(plan.arena());
        StepsWithoutData { plan, arena }
    }
}

impl StepOfOthers for StepsWithoutData {
    fn take_part(&self, calls: Vec<Call>, averages: bool) -> openfleet_dist::Result<()> {
        let mut arena = self.arena.lock();
        let took_part = match averages {
            true => self.plan.average_of_others(&mut arena, &calls),
            false => self.plan.step_of_others(&mut arena, calls),
        };
        took_part.map_err(|error| match error {
            Error::Communicator(error) => error,
            other => openfleet_dist::Error::Background { message: openfleet_core::error::report(&other) },
        })
    }
}
