//! Extra inputs of a push, and its report.
//!
//! A gradient that is not a number must neither enter a table nor silently stop a job: the table has a policy for it
//! ([`NonFinite`]), and the caller gets the count, to log it, to warn or to stop.

use serde::{Deserialize, Serialize};

use crate::clip::TOO_LARGE;
use crate::error::{Result, require};

/// What a table does with gradients that contain NaN, an infinity or a number too large to be squared ([`TOO_LARGE`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonFinite {
    /// Refuse and count them: in a sparse push the affected rows, in a dense push all of it.
    #[default]
    Skip,
    /// Clamp every number to `[-limit, limit]`, replace NaN by 0, and count the gradients that this changed.
    Clip(f32),
    /// Refuse the whole push with an error that names the first of them.
    Stop,
}

impl NonFinite {
    /// Fails if the limit is out of range.
    pub fn validate(&self) -> Result<()> {
        match *self {
            NonFinite::Clip(limit) => {
                let sane = limit > 0.0 && limit < TOO_LARGE;
                require(sane, "the policy for gradients that are not finite", "clip", "above 0 and below 2^60", limit)
            }
            NonFinite::Skip | NonFinite::Stop => Ok(()),
        }
    }
}

/// Shows and clicks of the keys of a push; one number per key, in the order of the keys.
///
/// Without it, every key counts as shown once and not clicked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShowClick<'a> {
    /// Number of samples with the key.
    pub show: &'a [f32],
    /// Number of those samples with a positive label.
    pub click: &'a [f32],
}

/// What a table did with one push.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PushReport {
    /// Gradients applied: the number of rows of a sparse table, 1 for a dense table.
    pub applied: usize,
    /// Gradients refused because they are not finite; the rows are unchanged.
    pub non_finite: usize,
    /// Applied gradients that were not finite or beyond the limit, and were clamped.
    pub clipped: usize,
    /// Gradients dropped because their keys are not admitted.
    pub not_admitted: usize,
}

impl PushReport {
    /// Adds the counts of another push, for totals over servers or steps.
    pub fn merge(&mut self, other: PushReport) {
        self.applied += other.applied;
        self.non_finite += other.non_finite;
        self.clipped += other.clipped;
        self.not_admitted += other.not_admitted;
    }
}

/// How many rows a shrink removed, and why. A row that more than one reason would remove counts under the first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shrunk {
    /// The score was below the accessor's threshold.
    pub by_score: usize,
    /// Not pushed for more days than the accessor allows.
    pub by_unseen_days: usize,
    /// Not touched within the given age.
    pub by_age: usize,
}

impl Shrunk {
    /// Number of rows removed.
    pub fn total(&self) -> usize {
        self.by_score + self.by_unseen_days + self.by_age
    }

    /// Adds the counts of another shrink, for totals over shards or servers.
    pub fn merge(&mut self, other: Shrunk) {
        self.by_score += other.by_score;
        self.by_unseen_days += other.by_unseen_days;
        self.by_age += other.by_age;
    }
}
