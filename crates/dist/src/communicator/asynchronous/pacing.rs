//! What a worker does differently on a slow link, from measured times: it merges gradients, and requests rows ahead.
//!
//! The more of its gradients a thread's values lack, the worse it learns, so on a fast link every gradient is sent alone. If a push
//! takes much longer than a batch, sending each alone makes the threads wait for the link most of the time. Then gradients are
//! merged: fewer bytes per batch, like fewer and larger batches. If a thread would wait long for the rows of every batch, it
//! requests them while it computes the batch before, and they lack that batch's gradients.
//!
//! This file has no clock: times are passed in.

use std::time::Duration;

/// A push that takes less than this is never slow: merging would save less than the values lose by their age.
const SLOW: Duration = Duration::from_millis(20);

/// One gradient per this many batches that a thread could compute while a push is in flight. Merging costs AUC, because there are
/// fewer updates, so a link has to be clearly slower than the thread: on a link of 1 Gbit/s where a push took two and a half
/// batches, merging four gradients gained a quarter of the speed and lost 0.004 of AUC.
const BATCHES_PER_GRADIENT: f64 = 1.5;

/// A pull that takes less than this, or less than this share of a batch, is waited for: fresh rows are worth more.
const SLOW_PULL: Duration = Duration::from_millis(4);
const SLOW_PULL_SHARE: f64 = 0.15;

/// One in so many pulls is waited for and measured, to notice when a link is fast again.
const MEASURED_PULLS: u64 = 32;

/// The weight of a new measurement in the averages.
const WEIGHT: f64 = 0.2;

/// Averages of measured times, and the number of gradients per push that follows from them.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    most: usize,
    batch: Option<f64>,
    push: Option<f64>,
    pull: Option<f64>,
    merged: usize,
    overlaps: bool,
    pulls: u64,
    has_merged: bool,
    has_overlapped: bool,
}

/// Average times in milliseconds.
pub(super) struct Averages {
    pub(super) batch: f64,
    pub(super) pull: f64,
    pub(super) push: f64,
}

impl Pacing {
    /// At most `most` gradients per push; 1 for no merging.
    pub(super) fn new(most: usize) -> Self {
        Pacing { most, merged: 1, ..Pacing::default() }
    }

    /// Gradients of a stream that may be merged into one push, and how long a push takes.
    pub(super) fn merging(&self) -> (usize, Duration) {
        (self.merged, Duration::from_secs_f64(self.push.unwrap_or(0.0)))
    }

    /// A thread took this long between two pushes, without waiting for rows or for its gradients.
    pub(super) fn batch_took(&mut self, time: Duration) {
        average(&mut self.batch, time);
    }

    /// A push took this long until its reply arrived. Returns whether gradients are merged for the first time.
    pub(super) fn push_took(&mut self, time: Duration) -> bool {
        average(&mut self.push, time);
        let (Some(push), Some(batch)) = (self.push, self.batch) else { return false };
        let wanted = match push >= SLOW.as_secs_f64() {
            true => (push / (BATCHES_PER_GRADIENT * batch.max(1e-6))) as usize,
            false => 1,
        };
        self.merged = wanted.clamp(1, self.most);
        self.merged > 1 && !std::mem::replace(&mut self.has_merged, true)
    }

    /// A thread has waited this long for the rows of a batch. Returns whether later pulls overlap for the first time.
    pub(super) fn pull_took(&mut self, time: Duration) -> bool {
        average(&mut self.pull, time);
        let (Some(pull), Some(batch)) = (self.pull, self.batch) else { return false };
        self.overlaps = pull >= SLOW_PULL.as_secs_f64() && pull >= SLOW_PULL_SHARE * batch;
        self.overlaps && !std::mem::replace(&mut self.has_overlapped, true)
    }

    /// Whether pulls overlap with computing.
    pub(super) fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// Whether the next pull does; some are waited for, to be measured.
    pub(super) fn overlaps_next_pull(&mut self) -> bool {
        self.pulls += 1;
        self.overlaps && !self.pulls.is_multiple_of(MEASURED_PULLS)
    }

    /// The averages, for messages.
    pub(super) fn averages_ms(&self) -> Averages {
        let [batch, pull, push] = [self.batch, self.pull, self.push].map(|seconds| 1e3 * seconds.unwrap_or(0.0));
        Averages { batch, pull, push }
    }
}

fn average(average: &mut Option<f64>, time: Duration) {
    let time = time.as_secs_f64();
    *average = Some(average.map_or(time, |average| average + WEIGHT * (time - average)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pacing: &mut Pacing, batch_ms: u64, push_ms: u64) -> usize {
        for _ in 0..50 {
            pacing.batch_took(Duration::from_millis(batch_ms));
            pacing.push_took(Duration::from_millis(push_ms));
        }
        pacing.merging().0
    }

    #[test]
    fn gradients_are_merged_while_pushes_are_slow() {
        let mut pacing = Pacing::new(4);
        assert_eq!(pacing.merging().0, 1);
        assert_eq!(after(&mut pacing, 10, 29), 1, "too little is gained");
        assert_eq!(after(&mut pacing, 10, 50), 3, "a push takes as long as five batches");
        assert_eq!(after(&mut pacing, 10, 500), 4, "not more than the bound");
        assert_eq!(after(&mut pacing, 100, 90), 1, "a thread computes longer than its push travels");
        assert_eq!(after(&mut pacing, 1, 15), 1, "a push of a fast link is never slow");
    }

    #[test]
    fn pulls_overlap_while_they_are_slow() {
        let mut pacing = Pacing::new(4);
        let mut after = |batch_ms, pull_ms| {
            for _ in 0..50 {
                pacing.batch_took(Duration::from_millis(batch_ms));
                pacing.pull_took(Duration::from_millis(pull_ms));
            }
            (0..MEASURED_PULLS).filter(|_| pacing.overlaps_next_pull()).count() as u64
        };
        assert_eq!(after(20, 2), 0);
        assert_eq!(after(20, 10), MEASURED_PULLS - 1, "one of them is measured");
        assert_eq!(after(200, 10), 0, "a small share of a batch");
    }

    #[test]
    fn a_bound_of_one_never_merges() {
        assert_eq!(after(&mut Pacing::new(1), 1, 1000), 1);
    }

    #[test]
    fn only_the_first_change_is_reported() {
        let (mut pacing, slow, fast) = (Pacing::new(4), Duration::from_millis(40), Duration::from_millis(1));
        pacing.batch_took(Duration::from_millis(4));
        assert!(pacing.push_took(slow) && !pacing.push_took(slow));
        assert!(pacing.pull_took(slow) && !pacing.pull_took(slow));
        let again =
            [fast; 50].into_iter().chain([slow; 50]).filter(|&took| pacing.push_took(took) | pacing.pull_took(took));
        assert_eq!(again.count(), 0);
    }
}
