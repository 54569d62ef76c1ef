//! What became of a push.
//!
//! A gradient that is not a number must neither enter a table nor stop a job by surprise: it is refused where it
//! stands, and the caller is told how many, to count them, to warn or to stop.

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
    /// Gradients refused because they hold a NaN or an infinity; what they would have changed is as it was.
    pub non_finite: usize,
}

impl PushReport {
    /// Adds the counts of another push, for totals over servers or steps.
    pub fn merge(&mut self, other: PushReport) {
        self.applied += other.applied;
        self.non_finite += other.non_finite;
    }
}
