//! Metrics of a model: one per file, all with the same four methods.
//!
//! `update` adds a batch, `value` is the metric of everything added, `merge` adds another thread's or worker's accumulator,
//! `reset` removes everything. An accumulator is a few sums, so merging in any order gives the value that one thread would have
//! computed (up to the rounding of `f64` sums; AUC counts in integers and is exact). [`Auc`] has its sums as PaddlePaddle's
//! counters, and the others as `total` and `count`, which workers add up before they divide.
//!
//! A metric does not know who feeds it, when it is printed, or how sums are sent between processes.

mod accuracy;
mod auc;
mod logloss;
mod mae;
mod mean;
mod mse;
mod rmse;

pub use accuracy::Accuracy;
pub use auc::{Auc, AucCounter, count_batch, exact_auc, global_auc, operator_auc};
pub use logloss::LogLoss;
pub use mae::Mae;
pub use mean::Mean;
pub use mse::Mse;
pub use rmse::Rmse;

use crate::error::{Error, Result};

/// A number that can be a label or a target: a class, a click, a price.
pub trait Target: Copy {
    /// Its value. Integers above 2^53 lose their last bits, which no label has.
    fn as_f64(self) -> f64;
}

impl Target for f32 {
    fn as_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Target for f64 {
    fn as_f64(self) -> f64 {
        self
    }
}

impl Target for i64 {
    fn as_f64(self) -> f64 {
        self as f64
    }
}

impl Target for u64 {
    /// A batch stores integer labels in the 64 bits of a key, so `u64::MAX` is the label -1, not a huge class.
    fn as_f64(self) -> f64 {
        self as i64 as f64
    }
}

fn same_length(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::Length { what, expected, got }) }
}

/// Checks that a value is a probability; the error names its row.
fn probability(metric: &'static str, value: f32, row: usize) -> Result<f32> {
    // Written so that NaN fails too.
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(Error::MetricInput { metric, expected: "a probability from 0 to 1", got: f64::from(value), row })
    }
}

/// Whether a label is positive: above 0 is, 0 is not, and anything else is an error that names its row.
fn is_positive(what: &'static str, label: impl Target, row: usize) -> Result<bool> {
    let value = label.as_f64();
    if value >= 0.0 {
        Ok(value > 0.0)
    } else {
        Err(Error::MetricInput { metric: what, expected: "0 or above", got: value, row })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_stored_as_a_key_keeps_its_sign() {
        assert_eq!((-1_i64 as u64).as_f64(), -1.0);
        assert_eq!(7_u64.as_f64(), 7.0);
    }

    #[test]
    fn nan_is_neither_a_probability_nor_a_label() {
        assert!(matches!(probability("auc", f32::NAN, 3), Err(Error::MetricInput { row: 3, .. })));
        assert!(matches!(is_positive("the label of `auc`", f32::NAN, 4), Err(Error::MetricInput { row: 4, .. })));
    }
}
