//! The mean of any values: a loss, a rate, a sum of squares. The other averaging metrics are built on it.

/// A running average.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mean {
    total: f64,
    count: u64,
}

impl Mean {
    /// No values yet.
    pub fn new() -> Self {
        Mean::default()
    }

    /// From sums that were computed elsewhere, for example over all workers.
    pub fn from_parts(total: f64, count: u64) -> Self {
        Mean { total, count }
    }

    /// Adds every value with weight one. NaN makes the mean NaN, so that a diverged loss is visible.
    pub fn update(&mut self, values: &[f32]) {
        self.total += values.iter().map(|&value| f64::from(value)).sum::<f64>();
        self.count += values.len() as u64;
    }

    /// Adds `count` values by their sum.
    pub fn add(&mut self, total: f64, count: u64) {
        self.total += total;
        self.count += count;
    }

    /// The mean, or 0 if there are no values.
    pub fn value(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.total / self.count as f64 }
    }

    /// The sum of all values.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds the values of another accumulator.
    pub fn merge(&mut self, other: &Mean) {
        self.add(other.total, other.count);
    }

    /// Removes all values.
    pub fn reset(&mut self) {
        *self = Mean::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_of_two_merged_halves_is_the_mean_of_the_whole() {
        let (mut left, mut right, mut whole) = (Mean::new(), Mean::new(), Mean::new());
        left.update(&[1.0, 2.0]);
        right.update(&[6.0]);
        whole.update(&[1.0, 2.0, 6.0]);
        left.merge(&right);
        assert_eq!((left.value(), left), (3.0, whole));
        assert_eq!(Mean::from_parts(left.total(), left.count()), whole);
    }

    #[test]
    fn an_empty_or_reset_mean_is_zero() {
        let mut mean = Mean::new();
        assert_eq!(mean.value(), 0.0);
        mean.update(&[5.0]);
        mean.reset();
        assert_eq!((mean.value(), mean.count()), (0.0, 0));
    }

    #[test]
    fn a_nan_shows_in_the_mean() {
        let mut mean = Mean::new();
        mean.update(&[1.0, f32::NAN]);
        assert!(mean.value().is_nan());
    }
}
