//! Weight decay as in PaddlePaddle: a term added to the gradient before the update rule.
//!
//! Sparse rows decay only when they are pushed; an untouched row keeps its weights, as in PaddlePaddle.

use serde::{Deserialize, Serialize};

use crate::error::{Result, require};

/// A penalty on the weights, given by its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Regularizer {
    /// Adds `coefficient * sign(weight)`.
    L1(f32),
    /// Adds `coefficient * weight` (the penalty is `coefficient / 2 * weight^2`).
    L2(f32),
}

impl Regularizer {
    /// Adds the penalty's gradient to `gradient`.
    ///
    /// # Panics
    ///
    /// If the two lengths differ.
    pub fn add_to(&self, weights: &[f32], gradient: &mut [f32]) {
        assert_eq!(weights.len(), gradient.len(), "one gradient per weight");
        match *self {
            Regularizer::L1(coefficient) => {
                for (g, w) in gradient.iter_mut().zip(weights) {
                    *g += coefficient * sign(*w);
                }
            }
            Regularizer::L2(coefficient) => {
                for (g, w) in gradient.iter_mut().zip(weights) {
                    *g += coefficient * w;
                }
            }
        }
    }

    /// Fails if the coefficient is out of range.
    pub fn validate(&self) -> Result<()> {
        let (Regularizer::L1(coefficient) | Regularizer::L2(coefficient)) = *self;
        require(
            coefficient.is_finite() && coefficient >= 0.0,
            "the regularizer",
            "coefficient",
            "a number not below 0",
            coefficient,
        )
    }
}

/// -1, 0 or 1; unlike `signum`, zero has no sign.
#[inline(always)]
pub(crate) fn sign(value: f32) -> f32 {
    f32::from(u8::from(value > 0.0)) - f32::from(u8::from(value < 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l1_adds_the_sign_and_l2_the_weight_times_the_coefficient() {
        let weights = [2.0, -4.0, 0.0];
        let mut gradient = [1.0; 3];
        Regularizer::L1(0.5).add_to(&weights, &mut gradient);
        assert_eq!(gradient, [1.5, 0.5, 1.0]);
        let mut gradient = [1.0; 3];
        Regularizer::L2(0.5).add_to(&weights, &mut gradient);
        assert_eq!(gradient, [2.0, -1.0, 1.0]);
    }
}
