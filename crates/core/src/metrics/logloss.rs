//! Log loss of predicted probabilities: -log p for a positive label, -log(1 - p) for a negative.
//!
//! A certain but wrong prediction would have an infinite loss and hide all others, so probabilities are clamped to at least
//! [`LogLoss::EPSILON`] from both ends first.

use super::mean::Mean;
use super::{Target, is_positive, probability, same_length};
use crate::error::Result;

/// Mean cross entropy of binary labels, in nats.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LogLoss {
    loss: Mean,
}

impl LogLoss {
    /// Minimum distance of a probability from 0 and 1: about the spacing of `f32` just below 1.
    pub const EPSILON: f64 = 1e-7;

    /// No rows yet.
    pub fn new() -> Self {
        LogLoss::default()
    }

    /// From sums that were computed elsewhere, for example over all workers.
    pub fn from_parts(total: f64, count: u64) -> Self {
        LogLoss { loss: Mean::from_parts(total, count) }
    }

    /// Adds one probability per label; a label above 0 is positive. A refused batch changes nothing.
    pub fn update<T: Target>(&mut self, labels: &[T], probabilities: &[f32]) -> Result<()> {
        same_length("probabilities of `logloss`", labels.len(), probabilities.len())?;
        let mut total = 0.0;
        for (row, (&label, &p)) in labels.iter().zip(probabilities).enumerate() {
            let p = f64::from(probability("logloss", p, row)?).clamp(Self::EPSILON, 1.0 - Self::EPSILON);
            total -= if is_positive("the label of `logloss`", label, row)? { p.ln() } else { (1.0 - p).ln() };
        }
        self.loss.add(total, labels.len() as u64);
        Ok(())
    }

    /// The mean loss, or 0 if there are no rows.
    pub fn value(&self) -> f64 {
        self.loss.value()
    }

    /// The sum of all losses.
    pub fn total(&self) -> f64 {
        self.loss.total()
    }

    /// Number of rows.
    pub fn count(&self) -> u64 {
        self.loss.count()
    }

    /// Adds the rows of another accumulator.
    pub fn merge(&mut self, other: &LogLoss) {
        self.loss.merge(&other.loss);
    }

    /// Removes all rows.
    pub fn reset(&mut self) {
        self.loss.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn logloss_of_a_coin_is_ln_two() {
        let mut metric = LogLoss::new();
        metric.update(&[1_i64, 0], &[0.5, 0.5]).unwrap();
        assert!((metric.value() - 2.0_f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn a_certain_and_wrong_prediction_costs_a_finite_loss() {
        let mut metric = LogLoss::new();
        metric.update(&[1.0_f32, 0.0], &[0.0, 1.0]).unwrap();
        assert!((metric.value() + LogLoss::EPSILON.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_refused_batch_changes_nothing() {
        let mut metric = LogLoss::new();
        metric.update(&[1_u64], &[0.25]).unwrap();
        let before = metric;
        let refused = metric.update(&[1_u64, 0], &[0.5, 1.5]);
        assert!(matches!(refused, Err(Error::MetricInput { metric: "logloss", row: 1, .. })));
        assert_eq!(metric, before);
        assert_eq!(LogLoss::from_parts(before.total(), before.count()), before);
        metric.merge(&before);
        assert_eq!((metric.count(), metric.value()), (2, before.value()));
        metric.reset();
        assert_eq!(metric.count(), 0);
    }
}
