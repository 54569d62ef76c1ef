//! `G += g^2`, `w -= rate * g / (sqrt(G) + epsilon)` (Duchi et al. 2011, in fluid's form).

use serde::{Deserialize, Serialize};

use super::Rule;
use crate::error::{Result, require};

/// A learning rate per weight that shrinks with the sum of squared gradients; one slot.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adagrad {
    /// Keeps the first steps finite.
    pub epsilon: f64,
    /// Initial value of `G`.
    pub initial_accumulator: f64,
}

impl Default for Adagrad {
    fn default() -> Self {
        Adagrad { epsilon: 1e-6, initial_accumulator: 0.0 }
    }
}

impl Adagrad {
    pub(crate) fn validate(&self) -> Result<()> {
        require(self.epsilon >= 0.0, "adagrad", "epsilon", "a number not below 0", self.epsilon)?;
        let start = self.initial_accumulator;
        require(start >= 0.0, "adagrad", "initial_accumulator", "a number not below 0", start)?;
        require(self.epsilon > 0.0 || start > 0.0, "adagrad", "epsilon", "above 0 where `G` starts at 0", self.epsilon)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    rate: f32,
    epsilon: f32,
}

impl Update {
    pub(crate) fn new(rule: &Adagrad, rate: f32) -> Self {
        Update { rate, epsilon: rule.epsilon as f32 }
    }
}

impl Rule<1> for Update {
    #[inline(always)]
    fn element(&self, weight: f32, [squares]: [f32; 1], gradient: f32) -> (f32, [f32; 1]) {
        let squares = squares + gradient * gradient;
        (weight - self.rate * gradient / (squares.sqrt() + self.epsilon), [squares])
    }
}
