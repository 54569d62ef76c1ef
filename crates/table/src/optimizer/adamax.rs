//! Adamax (Kingma and Ba 2015, section 7.1) in PaddlePaddle's form, where epsilon is part of the norm:
//!
//! ```text
//! m = beta1 * m + (1 - beta1) * g
//! u = max(|g|, beta2 * u + epsilon)
//! w -= rate / (1 - beta1^t) * m / u
//! ```
//!
//! `t` is the table's step, and sparse rows are updated lazily, as by Adam.

use serde::{Deserialize, Serialize};

use super::{Rule, without_subnormals};
use crate::error::Result;

/// First moment, divided by a norm that remembers the largest gradient; two slots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adamax {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the norm.
    pub beta2: f64,
    /// Keeps the quotient finite.
    pub epsilon: f64,
}

impl Default for Adamax {
    fn default() -> Self {
        Adamax { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

impl Adamax {
    pub(crate) fn validate(&self) -> Result<()> {
        super::check_moments("adamax", self.beta1, self.beta2, self.epsilon)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    factor: f32,
    epsilon: f32,
}

impl Update {
    pub(crate) fn new(rule: &Adamax, rate: f32, step: u64) -> Self {
        let t = step.max(1) as f64;
        Update {
            beta1: rule.beta1 as f32,
            one_minus_beta1: (1.0 - rule.beta1) as f32,
            beta2: rule.beta2 as f32,
            factor: (f64::from(rate) / (1.0 - rule.beta1.powf(t))) as f32,
            epsilon: rule.epsilon as f32,
        }
    }
}

impl Rule<2> for Update {
    #[inline(always)]
    fn element(&self, weight: f32, [m, norm]: [f32; 2], gradient: f32) -> (f32, [f32; 2]) {
        let m = without_subnormals(self.beta1 * m + self.one_minus_beta1 * gradient);
        let (largest, decayed) = (gradient.abs(), self.beta2 * norm + self.epsilon);
        let norm = if largest > decayed { largest } else { decayed };
        (weight - self.factor * (m / norm), [m, norm])
    }
}
