//! Adadelta (Zeiler 2012) in PaddlePaddle's form, where the update is multiplied by the learning rate:
//!
//! ```text
//! s = rho * s + (1 - rho) * g^2
//! d = sqrt(u + epsilon) / sqrt(s + epsilon) * g
//! u = rho * u + (1 - rho) * d^2
//! w -= rate * d                                   the paper's rate is 1
//! ```

use serde::{Deserialize, Serialize};

use super::{Rule, without_subnormals};
use crate::error::{Result, require};

/// Steps as long as the last ones were, by running means of squared gradients and of squared updates; two slots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adadelta {
    /// Keeps the quotient finite, and gives the first update its length.
    pub epsilon: f64,
    /// Decay of the running means.
    pub rho: f64,
}

impl Default for Adadelta {
    fn default() -> Self {
        Adadelta { epsilon: 1e-6, rho: 0.95 }
    }
}

impl Adadelta {
    pub(crate) fn validate(&self) -> Result<()> {
        require((0.0..=1.0).contains(&self.rho), "adadelta", "rho", "in [0, 1]", self.rho)?;
        let epsilon = self.epsilon;
        require(epsilon.is_finite() && epsilon > 0.0, "adadelta", "epsilon", "a number above 0", epsilon)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    rate: f32,
    rho: f32,
    one_minus_rho: f32,
    epsilon: f32,
}

impl Update {
    pub(crate) fn new(rule: &Adadelta, rate: f32) -> Self {
        let (rho, one_minus_rho) = (rule.rho as f32, (1.0 - rule.rho) as f32);
        Update { rate, rho, one_minus_rho, epsilon: rule.epsilon as f32 }
    }
}

impl Rule<2> for Update {
    #[inline(always)]
    fn element(&self, weight: f32, [squares, updates]: [f32; 2], gradient: f32) -> (f32, [f32; 2]) {
        let squares = without_subnormals(self.rho * squares + self.one_minus_rho * (gradient * gradient));
        let update = (updates + self.epsilon).sqrt() / (squares + self.epsilon).sqrt() * gradient;
        let updates = without_subnormals(self.rho * updates + self.one_minus_rho * (update * update));
        (weight - self.rate * update, [squares, updates])
    }
}
