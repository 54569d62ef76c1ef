//! AdaGrad with a running mean instead of a sum, in fluid's form:
//!
//! ```text
//! G = decay * G + (1 - decay) * g^2
//! w -= rate * g / (sqrt(G) + epsilon)
//! ```

use serde::{Deserialize, Serialize};

use super::{Rule, without_subnormals};
use crate::error::{Result, require};

/// AdaGrad with a running mean of squared gradients instead of their sum; one slot.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DecayedAdagrad {
    /// Decay of the running mean.
    pub decay: f64,
    /// Keeps the quotient finite.
    pub epsilon: f64,
}

impl Default for DecayedAdagrad {
    fn default() -> Self {
        DecayedAdagrad { decay: 0.95, epsilon: 1e-6 }
    }
}

impl DecayedAdagrad {
    pub(crate) fn validate(&self) -> Result<()> {
        let (owner, epsilon) = ("decayed_adagrad", self.epsilon);
        require((0.0..=1.0).contains(&self.decay), owner, "decay", "in [0, 1]", self.decay)?;
        require(epsilon.is_finite() && epsilon > 0.0, owner, "epsilon", "a number above 0", epsilon)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    rate: f32,
    decay: f32,
    one_minus_decay: f32,
    epsilon: f32,
}

impl Update {
    pub(crate) fn new(rule: &DecayedAdagrad, rate: f32) -> Self {
        let (decay, one_minus_decay) = (rule.decay as f32, (1.0 - rule.decay) as f32);
        Update { rate, decay, one_minus_decay, epsilon: rule.epsilon as f32 }
    }
}

impl Rule<1> for Update {
    #[inline(always)]
    fn element(&self, weight: f32, [squares]: [f32; 1], gradient: f32) -> (f32, [f32; 1]) {
        let squares = without_subnormals(self.decay * squares + self.one_minus_decay * (gradient * gradient));
        (weight - self.rate * gradient / (squares.sqrt() + self.epsilon), [squares])
    }
}
