//! Whether a training thread pushes gradients while others are computed: it tries both.
//!
//! Over a slow network early pushes save time. Over a fast one they cost time, if the cores that send and receive also compute.
//! The results are the same, so the thread measures steps of both kinds in turns, and repeats that from time to time. Which steps
//! those are follows from their number: workers that step together try the same at the same time.

use std::time::Duration;

/// What a thread has measured, and what it does.
#[derive(Debug, Default)]
pub(crate) struct EarlyTrial {
    late: Vec<Duration>,
    early: Vec<Duration>,
    is_early: bool,
}

/// The result of a trial: the median times of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TrialResult {
    pub(crate) late: Duration,
    pub(crate) early: Duration,
    pub(crate) is_early: bool,
}

/// A trial begins this many steps after the start, when connections and memory are warm, and again after every [`PERIOD`].
const BEGIN: u64 = 32;
const PERIOD: u64 = 1024;
/// Steps of a trial, in blocks of one kind each.
const LENGTH: u64 = 32;
const BLOCK: u64 = 4;
/// A smaller gain is probably chance.
const GAIN: f64 = 0.97;

impl EarlyTrial {
    /// Whether this step pushes early.
    pub(crate) fn is_early(&self, step: u64) -> bool {
        trial_block(step).map_or(self.is_early, |block| block % 2 == 1)
    }

    /// Records the time of a step. Returns the result of a trial after its last step.
    pub(crate) fn record(&mut self, step: u64, took: Duration) -> Option<TrialResult> {
        let block = trial_block(step)?;
        let times = if block % 2 == 1 { &mut self.early } else { &mut self.late };
        times.push(took);
        if trial_block(step + 1).is_some() {
            return None;
        }
        let (late, early) = (median(std::mem::take(&mut self.late)), median(std::mem::take(&mut self.early)));
        let (late, early) = (late?, early?);
        self.is_early = early.as_secs_f64() < GAIN * late.as_secs_f64();
        Some(TrialResult { late, early, is_early: self.is_early })
    }
}

/// The number of the block within a trial, if the step belongs to one.
fn trial_block(step: u64) -> Option<u64> {
    let at = step.checked_sub(BEGIN)? % PERIOD;
    (at < LENGTH).then_some(at / BLOCK)
}

/// `None` without times: a restarted thread may begin in the middle of a trial.
fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs steps whose time depends on whether they push early; returns the results, and how many steps pushed early.
    fn run(trial: &mut EarlyTrial, steps: std::ops::Range<u64>, (late, early): (u64, u64)) -> (Vec<bool>, usize) {
        let (mut results, mut pushed_early) = (Vec::new(), 0);
        for step in steps {
            let is_early = trial.is_early(step);
            pushed_early += usize::from(is_early);
            // Every ninth step is disturbed.
            let took = Duration::from_millis(if is_early { early } else { late } + if step % 9 == 0 { 500 } else { 0 });
            results.extend(trial.record(step, took).map(|result| result.is_early));
        }
        (results, pushed_early)
    }

    #[test]
    fn a_thread_does_what_was_faster_and_tries_again() {
        let mut trial = EarlyTrial::default();
        assert_eq!(run(&mut trial, 0..32, (20, 10)), (vec![], 0), "the first steps are not measured");
        assert_eq!(run(&mut trial, 32..132, (20, 18)), (vec![true], 16 + 68));
        assert_eq!(run(&mut trial, 132..1188, (20, 30)), (vec![false], (1056 - 132) + 16));
        assert_eq!(run(&mut trial, 1188..2080, (20, 10)), (vec![], 0));
        assert_eq!(run(&mut trial, 2080..2200, (200, 199)), (vec![false], 16), "a small gain is chance");
    }

    #[test]
    fn a_thread_that_begins_late_in_a_trial_decides_nothing() {
        let mut trial = EarlyTrial::default();
        assert_eq!(run(&mut trial, 61..100, (20, 10)), (vec![], 3));
        // The times of that trial do not count in the next.
        assert_eq!((trial.late.len(), trial.early.len()), (0, 0));
    }
}
