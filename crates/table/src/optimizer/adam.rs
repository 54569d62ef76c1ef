//! Adam (Kingma and Ba 2015) in PaddlePaddle's form, where epsilon is scaled by the bias correction:
//!
//! ```text
//! m = beta1 * m + (1 - beta1) * g
//! v = beta2 * v + (1 - beta2) * g^2
//! w -= rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon * sqrt(1 - beta2^t))
//! ```
//!
//! This is `m^ / (sqrt(v^) + epsilon)` of the paper and of PyTorch, written without the two divisions. With `unscaled_epsilon` it is
//! `sqrt(v) + epsilon` below the line, as in PyTorch's `SparseAdam`.
//!
//! `t` is the table's step, for dense parameters and for sparse rows, so equal gradients give equal weights in both.
//! PaddlePaddle's dense kernel counts like this. Its kernel for sparse gradients is one step ahead: at a rate of 0.1 its first
//! step moves a row by 0.0744, where the dense kernel, and this rule, move by 0.1. With `rows_ahead`, which PaddlePaddle's scripts
//! have, sparse rows are updated as that kernel does.
//!
//! With `lazy_mode` a sparse row that is not pushed keeps its weights and moments, and when it is pushed again, the bias
//! correction uses the table's step, not a step of the row. Without it every row of the table moves in every step, those that are
//! not pushed by a gradient of 0, as a dense parameter would; a step then costs as much as the table has rows.

use serde::{Deserialize, Serialize};

use super::{Rule, without_subnormals};
use crate::error::Result;

/// First and second moments with bias correction; two slots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adam {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Keeps the quotient finite.
    pub epsilon: f64,
    /// Whether sparse rows that are not pushed stay as they are. Dense parameters do not use it.
    #[serde(skip_serializing_if = "is_default")]
    pub lazy_mode: bool,
    /// Whether the bias correction of sparse rows is one step ahead. Dense parameters do not use it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rows_ahead: bool,
    /// Whether epsilon is not scaled by the bias correction.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unscaled_epsilon: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, lazy_mode: true, rows_ahead: false, unscaled_epsilon: false }
    }
}

/// Whether `lazy_mode` is its default, which is not written to files.
fn is_default(lazy_mode: &bool) -> bool {
    *lazy_mode
}

impl Adam {
    pub(crate) fn validate(&self) -> Result<()> {
        super::check_moments("adam", self.beta1, self.beta2, self.epsilon)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    factor: f32,
    epsilon: f32,
}

impl Update {
    pub(crate) fn new(rule: &Adam, rate: f32, step: u64) -> Self {
        let t = (step.max(1) + u64::from(rule.rows_ahead)) as f64;
        let correction2 = (1.0 - rule.beta2.powf(t)).sqrt();
        Update {
            beta1: rule.beta1 as f32,
            one_minus_beta1: (1.0 - rule.beta1) as f32,
            beta2: rule.beta2 as f32,
            one_minus_beta2: (1.0 - rule.beta2) as f32,
            factor: (f64::from(rate) * correction2 / (1.0 - rule.beta1.powf(t))) as f32,
            epsilon: (if rule.unscaled_epsilon { rule.epsilon } else { rule.epsilon * correction2 }) as f32,
        }
    }
}

impl Rule<2> for Update {
    #[inline(always)]
    fn element(&self, weight: f32, [m, v]: [f32; 2], gradient: f32) -> (f32, [f32; 2]) {
        let m = without_subnormals(self.beta1 * m + self.one_minus_beta1 * gradient);
        let v = self.beta2 * v + self.one_minus_beta2 * (gradient * gradient);
        (weight - self.factor * (m / (v.sqrt() + self.epsilon)), [m, v])
    }
}
