//! FTRL-Proximal (McMahan et al. 2013, "Ad click prediction: a view from the trenches") in fluid's form:
//!
//! ```text
//! n' = n + g^2
//! z += g - (n'^-p - n^-p) / rate * w                          p = lr_power, usually -0.5
//! w = 0                                      where |z| <= l1
//! w = (l1 * sign(z) - z) / (n'^-p / rate + 2 * l2)      elsewhere
//! ```
//!
//! Both penalties have fluid's extra 1e-10: with l1 = l2 = 0 a weight whose gradients were all zero would otherwise be 0 / 0.
//! The initial weight of a row has no effect after its first update, because `z` starts at 0: that is the algorithm.

use serde::{Deserialize, Serialize};

use super::Rule;
use crate::error::{Result, require};
use crate::regularizer::sign;

/// Follow the regularized leader; two slots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ftrl {
    /// The penalty that makes weights exactly zero.
    pub l1: f64,
    /// The penalty that makes weights small.
    pub l2: f64,
    /// Exponent of the learning rate's decay; 0 keeps it fixed.
    pub lr_power: f64,
}

impl Default for Ftrl {
    fn default() -> Self {
        Ftrl { l1: 0.0, l2: 0.0, lr_power: -0.5 }
    }
}

impl Ftrl {
    pub(crate) fn validate(&self) -> Result<()> {
        require(self.l1 >= 0.0, "ftrl", "l1", "a number not below 0", self.l1)?;
        require(self.l2 >= 0.0, "ftrl", "l2", "a number not below 0", self.l2)?;
        require(self.lr_power <= 0.0, "ftrl", "lr_power", "a number not above 0", self.lr_power)
    }
}

#[derive(Debug, Clone, Copy)]
struct Factors {
    rate: f32,
    l1: f32,
    two_l2: f32,
}

impl Factors {
    fn new(rule: &Ftrl, rate: f32) -> Self {
        Factors { rate, l1: (rule.l1 + 1e-10) as f32, two_l2: (2.0 * (rule.l2 + 1e-10)) as f32 }
    }

    /// The update, given `n` and `n'` raised to `-lr_power`.
    #[inline(always)]
    fn element(&self, weight: f32, linear: f32, gradient: f32, before: f32, after: f32) -> (f32, f32) {
        let linear = linear + (gradient - (after - before) / self.rate * weight);
        let leader = (self.l1 * sign(linear) - linear) / (after / self.rate + self.two_l2);
        (if linear.abs() > self.l1 { leader } else { 0.0 }, linear)
    }
}

/// The usual exponent, whose root is one instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SqrtUpdate(Factors);

impl SqrtUpdate {
    pub(crate) fn new(rule: &Ftrl, rate: f32) -> Self {
        SqrtUpdate(Factors::new(rule, rate))
    }
}

impl Rule<2> for SqrtUpdate {
    #[inline(always)]
    fn element(&self, weight: f32, [squared, linear]: [f32; 2], gradient: f32) -> (f32, [f32; 2]) {
        let new = squared + gradient * gradient;
        let (weight, linear) = self.0.element(weight, linear, gradient, squared.sqrt(), new.sqrt());
        (weight, [new, linear])
    }
}

/// Any other exponent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PowerUpdate {
    factors: Factors,
    power: f32,
}

impl PowerUpdate {
    pub(crate) fn new(rule: &Ftrl, rate: f32) -> Self {
        PowerUpdate { factors: Factors::new(rule, rate), power: -rule.lr_power as f32 }
    }
}

impl Rule<2> for PowerUpdate {
    #[inline(always)]
    fn element(&self, weight: f32, [squared, linear]: [f32; 2], gradient: f32) -> (f32, [f32; 2]) {
        let new = squared + gradient * gradient;
        let (before, after) = (squared.powf(self.power), new.powf(self.power));
        let (weight, linear) = self.factors.element(weight, linear, gradient, before, after);
        (weight, [new, linear])
    }
}
