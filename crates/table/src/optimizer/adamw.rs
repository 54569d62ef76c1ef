//! AdamW (Loshchilov and Hutter 2019): Adam with a weight decay that does not pass through the moments:
//!
//! ```text
//! w -= rate * weight_decay * w
//! w -= the update of Adam
//! ```
//!
//! On sparse rows it is lazy as Adam is: a row that is not pushed keeps its weights, so it does not decay either.

use serde::{Deserialize, Serialize};

use super::{Adam, Rule, adam};
use crate::error::{Result, require};

/// Adam with decoupled weight decay; two slots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Keeps the quotient finite.
    pub epsilon: f64,
    /// The share of a weight, times the learning rate, that is removed in every step.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl AdamW {
    pub(crate) fn validate(&self) -> Result<()> {
        super::check_moments("adamw", self.beta1, self.beta2, self.epsilon)?;
        let decay = self.weight_decay;
        require(decay.is_finite() && decay >= 0.0, "adamw", "weight_decay", "a number not below 0", decay)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    adam: adam::Update,
    kept: f32,
}

impl Update {
    pub(crate) fn new(rule: &AdamW, rate: f32, step: u64) -> Self {
        let AdamW { beta1, beta2, epsilon, weight_decay } = *rule;
        let adam = Adam { beta1, beta2, epsilon, ..Adam::default() };
        Update { adam: adam::Update::new(&adam, rate, step), kept: (1.0 - f64::from(rate) * weight_decay) as f32 }
    }
}

impl Rule<2> for Update {
    #[inline(always)]
    fn element(&self, weight: f32, state: [f32; 2], gradient: f32) -> (f32, [f32; 2]) {
        self.adam.element(weight * self.kept, state, gradient)
    }
}
