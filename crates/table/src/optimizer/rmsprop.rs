//! RMSProp (Hinton's lecture 6e) in fluid's form, where epsilon is under the root:
//!
//! ```text
//! s = rho * s + (1 - rho) * g^2
//! a = rho * a + (1 - rho) * g                 (centered only)
//! u = momentum * u + rate * g / sqrt(s - a^2 + epsilon)
//! w -= u
//! ```

use serde::{Deserialize, Serialize};

use super::{Rule, without_subnormals};
use crate::error::{Result, require};

/// A learning rate per weight from a running mean of squared gradients; two slots, three when centered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RmsProp {
    /// Decay of the running means.
    pub rho: f64,
    /// Keeps the quotient finite.
    pub epsilon: f64,
    /// The share of the last update that is kept.
    pub momentum: f64,
    /// Divide by the standard deviation instead of the root mean square.
    pub centered: bool,
}

impl Default for RmsProp {
    fn default() -> Self {
        RmsProp { rho: 0.95, epsilon: 1e-6, momentum: 0.0, centered: false }
    }
}

impl RmsProp {
    pub(crate) fn slots(&self) -> usize {
        if self.centered { 3 } else { 2 }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        require((0.0..=1.0).contains(&self.rho), "rms_prop", "rho", "in [0, 1]", self.rho)?;
        require(self.epsilon > 0.0, "rms_prop", "epsilon", "a number above 0", self.epsilon)?;
        require(self.momentum.is_finite(), "rms_prop", "momentum", "a finite number", self.momentum)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    rate: f32,
    rho: f32,
    one_minus_rho: f32,
    epsilon: f32,
    momentum: f32,
}

impl Update {
    pub(crate) fn new(rule: &RmsProp, rate: f32) -> Self {
        Update {
            rate,
            rho: rule.rho as f32,
            one_minus_rho: (1.0 - rule.rho) as f32,
            epsilon: rule.epsilon as f32,
            momentum: rule.momentum as f32,
        }
    }
}

impl Rule<2> for Update {
    #[inline(always)]
    fn element(&self, weight: f32, [squares, update]: [f32; 2], gradient: f32) -> (f32, [f32; 2]) {
        let squares = without_subnormals(self.rho * squares + self.one_minus_rho * (gradient * gradient));
        let step = self.rate * gradient / (squares + self.epsilon).sqrt();
        let update = without_subnormals(self.momentum * update + step);
        (weight - update, [squares, update])
    }
}

impl Rule<3> for Update {
    #[inline(always)]
    fn element(&self, weight: f32, [squares, update, mean]: [f32; 3], gradient: f32) -> (f32, [f32; 3]) {
        let squares = without_subnormals(self.rho * squares + self.one_minus_rho * (gradient * gradient));
        let mean = without_subnormals(self.rho * mean + self.one_minus_rho * gradient);
        // Negative only by rounding; PaddlePaddle takes the root of that too and stores NaN.
        let variance = squares - mean * mean;
        let variance = if variance > 0.0 { variance } else { 0.0 };
        let step = self.rate * gradient / (variance + self.epsilon).sqrt();
        let update = without_subnormals(self.momentum * update + step);
        (weight - update, [squares, update, mean])
    }
}
