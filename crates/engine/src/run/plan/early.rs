//! Pushing the gradients of the last layers while those of the first ones are still being computed.

use std::time::{Duration, Instant};

use openfleet_core::WorkId;
use openfleet_table::{Clip, clip};
use tracing::{debug, info};

use super::{Plan, clip_each};
use crate::error::Result;
use crate::memory::{Arena, GradientLocation, TrialResult};

/// Dense gradients that are pushed together during the backward pass.
#[derive(Debug, PartialEq)]
pub(super) struct EarlyPush {
    /// The position in the backward pass that completes them.
    pub(super) position: usize,
    parameters: Vec<usize>,
}

/// Floats of a push; more pushes of fewer floats cost more than they save.
const SMALLEST: usize = 1 << 16;

/// Whether gradients can be clipped before the others are known.
pub(super) fn can_push_early(clip: Option<Clip>) -> bool {
    match clip {
        None | Some(Clip::Value { .. }) => true,
        Some(Clip::Norm(_) | Clip::GlobalNorm(_)) => false,
    }
}

/// Divides the parameters into early pushes. `order` has the parameters in the order in which their gradients are complete,
/// `completed` how many of them each position of the backward pass completes. The last ones are left to the push of the step.
pub(super) fn early_pushes(order: &[usize], completed: &[usize], size: impl Fn(usize) -> usize) -> Vec<EarlyPush> {
    let mut pushes = Vec::new();
    let (mut begin, mut end) = (0, 0);
    for (position, &completed) in completed.iter().enumerate() {
        end += completed;
        let parameters = &order[begin..end];
        let floats: usize = parameters.iter().map(|&parameter| size(parameter)).sum();
        if floats >= SMALLEST && end < order.len() {
            pushes.push(EarlyPush { position, parameters: parameters.to_vec() });
            begin = end;
        }
    }
    pushes
}

impl Plan {
    /// Records the time of a step, which may decide whether later ones push early.
    pub(super) fn record_step(&self, arena: &mut Arena, work: WorkId, took: Duration) {
        if self.early.is_empty() {
            return;
        }
        let Some(TrialResult { late, early, is_early }) = arena.early_trial.record(work.last_step, took) else {
            return;
        };
        let [late, early] = [late, early].map(|time| 1e3 * time.as_secs_f64());
        debug!("a step takes {late:.1} ms, and {early:.1} ms if it sends large gradients while it computes the others");
        if is_early && self.is_first_warning("early pushes") {
            info!(
                "this worker sends large gradients while it computes the others, because the network is slow: a step takes \
                 {early:.1} ms instead of {late:.1} ms"
            );
        }
    }

    /// Pushes complete gradients. One that is not finite is left to the push of the step, which knows what to do with it.
    pub(super) fn push_early(&self, push: &EarlyPush, arena: &mut Arena, work: WorkId) -> Result<()> {
        let started = Instant::now();
        self.clear_unwritten(arena, |location| match location {
            GradientLocation::Dense(parameter) => push.parameters.contains(&parameter),
            _ => false,
        });
        if let Some(clip) = self.clip {
            for &parameter in &push.parameters {
                clip_each(clip, &mut [], std::slice::from_mut(&mut arena.dense[parameter]));
            }
        }
        let is_usable = |parameter: &usize| clip::is_usable(&arena.dense[*parameter].gradient);
        let usable: Vec<usize> = push.parameters.iter().copied().filter(is_usable).collect();
        self.communicator.push_early(work, &arena.dense, &usable)?;
        arena.times.push += started.elapsed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_gradients_are_pushed_when_complete_and_the_last_ones_with_the_step() {
        // Positions 0 and 2 complete two parameters each, position 3 the last one.
        let sizes = [SMALLEST, 10, SMALLEST / 2, SMALLEST / 2, 3 * SMALLEST];
        let pushes = early_pushes(&[4, 1, 3, 2, 0], &[2, 0, 2, 1], |parameter| sizes[parameter]);
        let push = |position, parameters: &[usize]| EarlyPush { position, parameters: parameters.to_vec() };
        assert_eq!(pushes, [push(0, &[4, 1]), push(2, &[3, 2])]);
        assert_eq!(early_pushes(&[0], &[1], |_| SMALLEST), [], "a single parameter is the last one");
        assert_eq!(early_pushes(&[0, 1], &[1, 1], |_| 10), [], "small ones wait for the step");
    }
}
