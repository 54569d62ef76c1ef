//! The square root of the mean squared error, in the unit of the target. It merges like [`Mse`]: the root is taken once, after
//! the sums are complete.

use super::Target;
use super::mse::Mse;
use crate::error::Result;

/// Root of the mean squared error.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rmse {
    mse: Mse,
}

impl Rmse {
    /// No rows yet.
    pub fn new() -> Self {
        Rmse::default()
    }

    /// From sums that were computed elsewhere, for example over all workers.
    pub fn from_parts(total: f64, count: u64) -> Self {
        Rmse { mse: Mse::from_parts(total, count) }
    }

    /// Adds one prediction per target.
    pub fn update<T: Target>(&mut self, targets: &[T], predictions: &[f32]) -> Result<()> {
        self.mse.update(targets, predictions)
    }

    /// The root of the mean squared error, or 0 if there are no rows.
    pub fn value(&self) -> f64 {
        self.mse.value().sqrt()
    }

    /// The sum of all squares.
    pub fn total(&self) -> f64 {
        self.mse.total()
    }

    /// Number of rows.
    pub fn count(&self) -> u64 {
        self.mse.count()
    }

    /// Adds the rows of another accumulator.
    pub fn merge(&mut self, other: &Rmse) {
        self.mse.merge(&other.mse);
    }

    /// Removes all rows.
    pub fn reset(&mut self) {
        self.mse.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rmse_takes_the_root_after_merging_not_before() {
        let (mut left, mut right) = (Rmse::new(), Rmse::new());
        left.update(&[0.0_f32], &[3.0]).unwrap();
        right.update(&[0.0_f32], &[4.0]).unwrap();
        left.merge(&right);
        assert_eq!(left.value(), 12.5_f64.sqrt());
        left.reset();
        assert_eq!(left, Rmse::from_parts(0.0, 0));
    }
}
