//! `v = mu * v + g`, then `w -= rate * v`, or with Nesterov `w -= rate * (g + mu * v)`.
//!
//! The rate is outside the velocity, as in fluid and PyTorch: changing it takes effect at once.

use serde::{Deserialize, Serialize};

use super::{Rule, without_subnormals};
use crate::error::{Result, require};

/// Gradient descent with momentum; one slot.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Momentum {
    /// The share of the velocity that is kept. PaddlePaddle has no default; 0.9 is the usual choice.
    pub momentum: f64,
    /// Nesterov momentum: look ahead along the velocity.
    pub nesterov: bool,
}

impl Default for Momentum {
    fn default() -> Self {
        Momentum { momentum: 0.9, nesterov: false }
    }
}

impl Momentum {
    pub(crate) fn validate(&self) -> Result<()> {
        require(self.momentum.is_finite(), "momentum", "momentum", "a finite number", self.momentum)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    rate: f32,
    momentum: f32,
}

impl Update {
    pub(crate) fn new(rule: &Momentum, rate: f32) -> Self {
        Update { rate, momentum: rule.momentum as f32 }
    }
}

impl Rule<1> for Update {
    #[inline(always)]
    fn element(&self, weight: f32, [velocity]: [f32; 1], gradient: f32) -> (f32, [f32; 1]) {
        let velocity = without_subnormals(self.momentum * velocity + gradient);
        (weight - self.rate * velocity, [velocity])
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct NesterovUpdate(Update);

impl NesterovUpdate {
    pub(crate) fn new(rule: &Momentum, rate: f32) -> Self {
        NesterovUpdate(Update::new(rule, rate))
    }
}

impl Rule<1> for NesterovUpdate {
    #[inline(always)]
    fn element(&self, weight: f32, [velocity]: [f32; 1], gradient: f32) -> (f32, [f32; 1]) {
        let velocity = without_subnormals(self.0.momentum * velocity + gradient);
        (weight - self.0.rate * (gradient + self.0.momentum * velocity), [velocity])
    }
}
