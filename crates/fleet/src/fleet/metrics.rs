//! `fleet.metrics`: metrics over all workers.
//!
//! Every worker calls with its own counts, and every worker gets the same result. The counts are reduced over the workers; the
//! `core` crate computes the metric from the totals. Counts travel as 64-bit floats, which are exact up to 2^53.

use openfleet_core::Error as CoreError;
use openfleet_core::metrics::{Accuracy, Mae, Mse, Rmse, global_auc};
use openfleet_dist::Reduce;

use super::Fleet;
use crate::error::Result;

/// Metrics over all workers.
#[derive(Clone, Copy)]
pub struct Metrics<'a> {
    fleet: &'a Fleet,
}

impl<'a> Metrics<'a> {
    pub(super) fn new(fleet: &'a Fleet) -> Self {
        Metrics { fleet }
    }

    /// The element-wise sum.
    pub fn sum(&self, values: &[f64]) -> Result<Vec<f64>> {
        self.reduced(Reduce::Sum, values)
    }

    /// The element-wise maximum.
    pub fn max(&self, values: &[f64]) -> Result<Vec<f64>> {
        self.reduced(Reduce::Max, values)
    }

    /// The element-wise mean over the workers.
    pub fn mean(&self, values: &[f64]) -> Result<Vec<f64>> {
        self.reduced(Reduce::Mean, values)
    }

    /// The element-wise minimum.
    pub fn min(&self, values: &[f64]) -> Result<Vec<f64>> {
        self.reduced(Reduce::Min, values)
    }

    /// The AUC of all workers' rows, from the counters of the `auc` layer: positive and negative rows per bucket of predicted
    /// probability. It is 0.5 without positive or without negative rows.
    pub fn auc(&self, positive: &[i64], negative: &[i64]) -> Result<f64> {
        if positive.len() != negative.len() {
            let (expected, got) = (positive.len(), negative.len());
            return Err(CoreError::Length { what: "negative buckets", expected, got }.into());
        }
        let both: Vec<f64> = positive.iter().chain(negative).map(|&count| count as f64).collect();
        let both: Vec<i64> = self.sum(&both)?.into_iter().map(|count| count as i64).collect();
        let (positive, negative) = both.split_at(positive.len());
        Ok(global_auc(positive, negative))
    }

    /// The accuracy: the share of rows that were predicted correctly.
    pub fn acc(&self, correct: u64, total: u64) -> Result<f64> {
        let [correct, total] = self.totals([correct as f64, total as f64])?;
        Ok(Accuracy::from_parts(correct as u64, total as u64).value())
    }

    /// The mean absolute error, from the sum of absolute errors.
    pub fn mae(&self, absolute_error: f64, total: u64) -> Result<f64> {
        let [error, total] = self.totals([absolute_error, total as f64])?;
        Ok(Mae::from_parts(error, total as u64).value())
    }

    /// The mean squared error, from the sum of squared errors.
    pub fn mse(&self, squared_error: f64, total: u64) -> Result<f64> {
        let [error, total] = self.totals([squared_error, total as f64])?;
        Ok(Mse::from_parts(error, total as u64).value())
    }

    /// The root of the mean squared error, from the sum of squared errors.
    pub fn rmse(&self, squared_error: f64, total: u64) -> Result<f64> {
        let [error, total] = self.totals([squared_error, total as f64])?;
        Ok(Rmse::from_parts(error, total as u64).value())
    }

    fn totals<const N: usize>(&self, mut values: [f64; N]) -> Result<[f64; N]> {
        self.fleet.all_reduce(Reduce::Sum, &mut values)?;
        Ok(values)
    }

    fn reduced(&self, op: Reduce, values: &[f64]) -> Result<Vec<f64>> {
        let mut values = values.to_vec();
        self.fleet.all_reduce(op, &mut values)?;
        Ok(values)
    }
}
