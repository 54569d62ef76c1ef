//! The mean distance of predictions from their targets: |target - prediction|.

use super::mean::Mean;
use super::{Target, same_length};
use crate::error::Result;

/// Mean absolute error.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mae {
    distance: Mean,
}

impl Mae {
    /// No rows yet.
    pub fn new() -> Self {
        Mae::default()
    }

    /// From sums that were computed elsewhere, for example over all workers.
    pub fn from_parts(total: f64, count: u64) -> Self {
        Mae { distance: Mean::from_parts(total, count) }
    }

    /// Adds one prediction per target.
    pub fn update<T: Target>(&mut self, targets: &[T], predictions: &[f32]) -> Result<()> {
        same_length("predictions of `mae`", targets.len(), predictions.len())?;
        let errors =
            targets.iter().zip(predictions).map(|(target, &prediction)| target.as_f64() - f64::from(prediction));
        self.distance.add(errors.map(f64::abs).sum(), targets.len() as u64);
        Ok(())
    }

    /// The mean absolute error, or 0 if there are no rows.
    pub fn value(&self) -> f64 {
        self.distance.value()
    }

    /// The sum of all distances.
    pub fn total(&self) -> f64 {
        self.distance.total()
    }

    /// Number of rows.
    pub fn count(&self) -> u64 {
        self.distance.count()
    }

    /// Adds the rows of another accumulator.
    pub fn merge(&mut self, other: &Mae) {
        self.distance.merge(&other.distance);
    }

    /// Removes all rows.
    pub fn reset(&mut self) {
        self.distance.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn mae_is_the_mean_of_the_absolute_differences() {
        let (mut metric, mut other) = (Mae::new(), Mae::new());
        metric.update(&[1.0_f32, 2.0], &[0.5, 4.0]).unwrap();
        other.update(&[3_i64], &[3.0]).unwrap();
        metric.merge(&other);
        assert_eq!((metric.total(), metric.count()), (2.5, 3));
        assert!((metric.value() - 2.5 / 3.0).abs() < 1e-12);
        assert_eq!(Mae::from_parts(metric.total(), 3), metric);
        metric.reset();
        assert_eq!(metric.value(), 0.0);
    }

    #[test]
    fn unequal_lengths_are_refused_and_change_nothing() {
        let mut metric = Mae::new();
        let refused = metric.update(&[1.0_f32], &[0.5, 0.5]);
        assert_eq!(refused, Err(Error::Length { what: "predictions of `mae`", expected: 1, got: 2 }));
        assert_eq!(metric.count(), 0);
    }
}
