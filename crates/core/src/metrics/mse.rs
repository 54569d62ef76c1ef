//! The mean squared distance of predictions from their targets: (target - prediction)^2.

use super::mean::Mean;
use super::{Target, same_length};
use crate::error::Result;

/// Mean squared error.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mse {
    square: Mean,
}

impl Mse {
    /// No rows yet.
    pub fn new() -> Self {
        Mse::default()
    }

    /// From sums that were computed elsewhere, for example over all workers.
    pub fn from_parts(total: f64, count: u64) -> Self {
        Mse { square: Mean::from_parts(total, count) }
    }

    /// Adds one prediction per target.
    pub fn update<T: Target>(&mut self, targets: &[T], predictions: &[f32]) -> Result<()> {
        same_length("predictions of `mse`", targets.len(), predictions.len())?;
        let errors =
            targets.iter().zip(predictions).map(|(target, &prediction)| target.as_f64() - f64::from(prediction));
        self.square.add(errors.map(|error| error * error).sum(), targets.len() as u64);
        Ok(())
    }

    /// The mean squared error, or 0 if there are no rows.
    pub fn value(&self) -> f64 {
        self.square.value()
    }

    /// The sum of all squares.
    pub fn total(&self) -> f64 {
        self.square.total()
    }

    /// Number of rows.
    pub fn count(&self) -> u64 {
        self.square.count()
    }

    /// Adds the rows of another accumulator.
    pub fn merge(&mut self, other: &Mse) {
        self.square.merge(&other.square);
    }

    /// Removes all rows.
    pub fn reset(&mut self) {
        self.square.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn mse_is_the_mean_of_the_squared_differences() {
        let (mut metric, mut other) = (Mse::new(), Mse::new());
        metric.update(&[1.0_f32, 2.0], &[0.5, 4.0]).unwrap();
        other.update(&[3_i64], &[3.0]).unwrap();
        metric.merge(&other);
        assert_eq!((metric.total(), metric.count()), (4.25, 3));
        assert!((metric.value() - 4.25 / 3.0).abs() < 1e-12);
        assert_eq!(Mse::from_parts(metric.total(), 3), metric);
        metric.reset();
        assert_eq!(metric.value(), 0.0);
    }

    #[test]
    fn unequal_lengths_are_refused_and_change_nothing() {
        let mut metric = Mse::new();
        let refused = metric.update(&[1.0_f32], &[0.5, 0.5]);
        assert_eq!(refused, Err(Error::Length { what: "predictions of `mse`", expected: 1, got: 2 }));
        assert_eq!(metric.count(), 0);
    }
}
