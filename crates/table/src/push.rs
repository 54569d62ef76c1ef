//! What comes with a push, and what became of it.
//!
//! A gradient that is not a number must neither enter a table nor stop a job by surprise: what happens to it is the
//! table's policy ([`NonFinite`]), and the caller is told how many there were, to count them, to warn or to stop.

use serde::{Deserialize, Serialize};

use crate::clip::TOO_LARGE;
use crate::error::{Result, require};

/// What a table does about gradients that hold a NaN, an infinity or a number too large to be squared
/// ([`TOO_LARGE`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NonFinite {
    /// Refuse them where they stand and count them: of a sparse push the rows concerned, a dense push whole.
    #[default]
    Skip,
    /// Put every number of every gradient into `[-limit, limit]`, and 0 in the place of NaN, and count the gradients
    /// that this changed.
    Clip(f32),
    /// Refuse the whole push with an error that names the first of them.
    Stop,
}

impl NonFinite {
    /// What is wrong with the limit, if anything.
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

/// How often the keys of a push were shown and clicked; one number each a key, in the order of the keys.
///
/// Without it a key was shown once and not clicked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShowClick<'a> {
    /// Samples with the key.
    pub show: &'a [f32],
    /// Those of them with a positive label.
    pub click: &'a [f32],
}

/// What a table did with one push.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PushReport {
    /// Gradients applied: rows of a sparse table, one for the whole array of a dense table.
    pub applied: usize,
    /// Gradients refused because they are not finite; what they would have changed is as it was.
    pub non_finite: usize,
    /// Gradients among the applied that were not finite or beyond the limit, and were put into range.
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
    /// The score had fallen below the accessor's threshold.
    pub by_score: usize,
    /// Not pushed for more days than the accessor allows.
    pub by_unseen_days: usize,
    /// Not touched within the age asked for.
    pub by_age: usize,
}

impl Shrunk {
    /// Rows removed.
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
