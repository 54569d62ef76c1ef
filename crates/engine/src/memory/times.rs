//! Where the time of a training thread goes.

use std::ops::{AddAssign, Sub};
use std::time::Duration;

/// The time of training threads by what they did. The five phases add up to the time of the steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepTimes {
    /// Waiting for the next batch.
    pub data: Duration,
    /// Reading rows and dense values: from servers, or from tables in this process.
    pub pull: Duration,
    /// Deduplicating ids, forward, backward, clipping.
    pub compute: Duration,
    /// Sending gradients to servers or other ranks, or applying them to tables in this process. In a pass with servers also the
    /// flush at its end.
    pub push: Duration,
    /// Waiting for other workers: at the start of a pass and, in modes whose workers step together, for their gradients.
    pub barrier: Duration,
    /// The part of these that was spent waiting, for data, servers or other workers. Reading and writing tables in this process
    /// is not waiting.
    pub waited: Duration,
}

impl StepTimes {
    /// The phases in the order of a step, with their names.
    pub fn phases(&self) -> [(&'static str, Duration); 5] {
        [
            ("data", self.data),
            ("pull", self.pull),
            ("compute", self.compute),
            ("push", self.push),
            ("barrier", self.barrier),
        ]
    }

    /// The sum of all phases.
    pub fn total(&self) -> Duration {
        self.phases().iter().map(|(_, time)| *time).sum()
    }

    /// Each phase as a share of all of them, 0 to 1; zeros if no time was measured.
    pub fn shares(&self) -> [(&'static str, f64); 5] {
        let total = self.total().as_secs_f64();
        self.phases().map(|(name, time)| (name, if total > 0.0 { time.as_secs_f64() / total } else { 0.0 }))
    }
}

impl AddAssign for StepTimes {
    fn add_assign(&mut self, other: Self) {
        self.data += other.data;
        self.pull += other.pull;
        self.compute += other.compute;
        self.push += other.push;
        self.barrier += other.barrier;
        self.waited += other.waited;
    }
}

/// The time since an earlier reading of the same counters.
impl Sub for StepTimes {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        StepTimes {
            data: self.data.saturating_sub(earlier.data),
            pull: self.pull.saturating_sub(earlier.pull),
            compute: self.compute.saturating_sub(earlier.compute),
            push: self.push.saturating_sub(earlier.push),
            barrier: self.barrier.saturating_sub(earlier.barrier),
            waited: self.waited.saturating_sub(earlier.waited),
        }
    }
}
