//! Learning rates as functions of the step.
//!
//! A schedule is pure: the same step gives the same rate on every server, after every restart. It does not know which rule uses
//! the rate. Formulas and edge cases are those of fluid's `learning_rate_scheduler`: steps count from 0, so `rate(0)` is the
//! rate of the first update. Noam's schedule counts from 1, because it divides by the step, unless it is told otherwise.

use serde::{Deserialize, Serialize};

use crate::error::{Result, require};

/// How the learning rate changes with the step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Schedule {
    /// The same rate for all steps.
    Constant(f64),
    /// `base * decay_rate ^ (step / decay_steps)`.
    Exponential {
        /// The rate of step 0.
        base: f64,
        /// Steps over which the rate is multiplied by `decay_rate` once.
        decay_steps: u64,
        /// The factor.
        decay_rate: f64,
        /// Decay in discrete steps (`floor(step / decay_steps)`) instead of smoothly.
        #[serde(default)]
        staircase: bool,
    },
    /// `base * e ^ (-decay_rate * step / decay_steps)`.
    NaturalExp {
        /// The rate of step 0.
        base: f64,
        /// Steps that count as one unit of decay.
        decay_steps: u64,
        /// The speed of decay.
        decay_rate: f64,
        /// Whole units only.
        #[serde(default)]
        staircase: bool,
    },
    /// `base / (1 + decay_rate * step / decay_steps)`.
    InverseTime {
        /// The rate of step 0.
        base: f64,
        /// Steps that count as one unit of decay.
        decay_steps: u64,
        /// The speed of decay.
        decay_rate: f64,
        /// Whole units only.
        #[serde(default)]
        staircase: bool,
    },
    /// `(base - end) * (1 - step / decay_steps) ^ power + end`, then `end`; with `cycle` the rate rises again each time it has
    /// reached `end`, over increasingly long periods.
    Polynomial {
        /// The rate of step 0.
        base: f64,
        /// Steps until `end` is reached.
        decay_steps: u64,
        /// The last rate.
        end: f64,
        /// The power; 1 is a straight line.
        power: f64,
        /// Whether to rise again.
        #[serde(default)]
        cycle: bool,
    },
    /// `values[i]` where `i` boundaries are at or before the step.
    Piecewise {
        /// Steps at which the next value begins, increasing.
        boundaries: Vec<u64>,
        /// One value more than boundaries.
        values: Vec<f64>,
    },
    /// `base * (cos(epoch * pi / epochs) + 1) / 2`, where `epoch = floor(step / step_each_epoch)`.
    Cosine {
        /// The rate of epoch 0.
        base: f64,
        /// Steps in an epoch.
        step_each_epoch: u64,
        /// Epochs until 0 is reached.
        epochs: u64,
    },
    /// `base * d_model ^ -0.5 * min(n ^ -0.5, n * warmup_steps ^ -1.5)` with `n = step + first` ("Attention is all you
    /// need", section 5.3).
    Noam {
        /// A factor for the whole curve; 1 in the paper.
        base: f64,
        /// The width of the model.
        d_model: f64,
        /// Steps during which the rate rises.
        warmup_steps: u64,
        /// The number of the first step: 1 in the paper and in fluid's `noam_decay`; 0 in PaddlePaddle 2, whose first step has
        /// the rate 0.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        first: u64,
    },
    /// A straight line from `start` to `end` over `warmup_steps`, then `after`. That schedule gets the same step count, so it
    /// decays during the warm-up too, as in PaddlePaddle.
    Warmup {
        /// Steps of the line.
        warmup_steps: u64,
        /// The rate of step 0.
        start: f64,
        /// The rate the line would reach at step `warmup_steps`.
        end: f64,
        /// The schedule after the warm-up.
        after: Box<Schedule>,
    },
    /// Another schedule times a factor: for a parameter with its own learning rate.
    Scaled {
        /// The factor.
        factor: f64,
        /// The schedule that is multiplied.
        of: Box<Schedule>,
    },
}

impl Schedule {
    /// This schedule times a factor.
    pub fn scaled(self, factor: f64) -> Self {
        if factor == 1.0 { self } else { Schedule::Scaled { factor, of: Box::new(self) } }
    }

    /// The rate of the update after `step` completed ones.
    pub fn rate(&self, step: u64) -> f64 {
        match self {
            Schedule::Constant(rate) => *rate,
            Schedule::Exponential { base, decay_steps, decay_rate, staircase } => {
                base * decay_rate.powf(units(step, *decay_steps, *staircase))
            }
            Schedule::NaturalExp { base, decay_steps, decay_rate, staircase } => {
                base * (-decay_rate * units(step, *decay_steps, *staircase)).exp()
            }
            Schedule::InverseTime { base, decay_steps, decay_rate, staircase } => {
                base / (1.0 + decay_rate * units(step, *decay_steps, *staircase))
            }
            Schedule::Polynomial { base, decay_steps, end, power, cycle } => {
                let (step, period) = if *cycle {
                    // Step 0 belongs to the first period, although its quotient rounds up to 0.
                    (step, decay_steps.saturating_mul(step.div_ceil(*decay_steps).max(1)))
                } else {
                    (step.min(*decay_steps), *decay_steps)
                };
                (base - end) * (1.0 - step as f64 / period as f64).powf(*power) + end
            }
            Schedule::Piecewise { boundaries, values } => {
                values[boundaries.partition_point(|boundary| *boundary <= step)]
            }
            Schedule::Cosine { base, step_each_epoch, epochs } => {
                let epoch = (step / step_each_epoch) as f64;
                base * 0.5 * ((epoch * std::f64::consts::PI / *epochs as f64).cos() + 1.0)
            }
            Schedule::Noam { base, d_model, warmup_steps, first } => {
                // With n = 0 the second term is 0, and the first one infinite.
                let n = step as f64 + *first as f64;
                base * d_model.powf(-0.5) * n.powf(-0.5).min(n * (*warmup_steps as f64).powf(-1.5))
            }
            Schedule::Warmup { warmup_steps, start, end, after } => {
                if step < *warmup_steps {
                    start + (end - start) * (step as f64 / *warmup_steps as f64)
                } else {
                    after.rate(step)
                }
            }
            Schedule::Scaled { factor, of } => factor * of.rate(step),
        }
    }

    /// Returns this schedule, or an error if a number is out of range. Tables call it when they are created.
    pub fn validated(self) -> Result<Self> {
        self.validate()?;
        Ok(self)
    }

    /// Fails if a number is out of range.
    pub fn validate(&self) -> Result<()> {
        let positive = "at least 1";
        match self {
            Schedule::Constant(rate) => finite("the constant schedule", "rate", *rate),
            Schedule::Scaled { factor, of } => {
                finite("a scaled schedule", "factor", *factor)?;
                of.validate()
            }
            Schedule::Exponential { base, decay_steps, decay_rate, .. } => {
                let owner = "the exponential schedule";
                finite(owner, "base", *base)?;
                require(*decay_steps >= 1, owner, "decay_steps", positive, decay_steps)?;
                require(
                    decay_rate.is_finite() && *decay_rate > 0.0,
                    owner,
                    "decay_rate",
                    "a number above 0",
                    decay_rate,
                )
            }
            Schedule::NaturalExp { base, decay_steps, decay_rate, .. } => {
                let owner = "the natural exponential schedule";
                finite(owner, "base", *base)?;
                require(*decay_steps >= 1, owner, "decay_steps", positive, decay_steps)?;
                finite(owner, "decay_rate", *decay_rate)
            }
            Schedule::InverseTime { base, decay_steps, decay_rate, .. } => {
                let owner = "the inverse time schedule";
                finite(owner, "base", *base)?;
                require(*decay_steps >= 1, owner, "decay_steps", positive, decay_steps)?;
                require(
                    decay_rate.is_finite() && *decay_rate >= 0.0,
                    owner,
                    "decay_rate",
                    "a number not below 0",
                    decay_rate,
                )
            }
            Schedule::Polynomial { base, decay_steps, end, power, .. } => {
                let owner = "the polynomial schedule";
                finite(owner, "base", *base)?;
                finite(owner, "end", *end)?;
                require(*decay_steps >= 1, owner, "decay_steps", positive, decay_steps)?;
                require(power.is_finite() && *power > 0.0, owner, "power", "a number above 0", power)
            }
            Schedule::Piecewise { boundaries, values } => {
                let owner = "the piecewise schedule";
                let increasing = boundaries.windows(2).all(|pair| pair[0] < pair[1]);
                require(increasing, owner, "boundaries", "increasing", format!("{boundaries:?}"))?;
                require(
                    values.len() == boundaries.len() + 1,
                    owner,
                    "values",
                    "one longer than `boundaries`",
                    format!("{} values for {} boundaries", values.len(), boundaries.len()),
                )?;
                values.iter().try_for_each(|value| finite(owner, "values", *value))
            }
            Schedule::Cosine { base, step_each_epoch, epochs } => {
                let owner = "the cosine schedule";
                finite(owner, "base", *base)?;
                require(*step_each_epoch >= 1, owner, "step_each_epoch", positive, step_each_epoch)?;
                require(*epochs >= 1, owner, "epochs", positive, epochs)
            }
            Schedule::Noam { base, d_model, warmup_steps, .. } => {
                let owner = "the Noam schedule";
                finite(owner, "base", *base)?;
                require(d_model.is_finite() && *d_model > 0.0, owner, "d_model", "a number above 0", d_model)?;
                require(*warmup_steps >= 1, owner, "warmup_steps", positive, warmup_steps)
            }
            Schedule::Warmup { warmup_steps, start, end, after } => {
                let owner = "the warmup schedule";
                finite(owner, "start", *start)?;
                finite(owner, "end", *end)?;
                require(*warmup_steps >= 1, owner, "warmup_steps", positive, warmup_steps)?;
                after.validate()
            }
        }
    }
}

impl From<f64> for Schedule {
    /// A plain number is the constant schedule.
    fn from(rate: f64) -> Self {
        Schedule::Constant(rate)
    }
}

fn units(step: u64, decay_steps: u64, staircase: bool) -> f64 {
    if staircase { (step / decay_steps) as f64 } else { step as f64 / decay_steps as f64 }
}

fn one() -> u64 {
    1
}

fn is_one(first: &u64) -> bool {
    *first == 1
}

fn finite(owner: &'static str, field: &'static str, value: f64) -> Result<()> {
    require(value.is_finite(), owner, field, "a finite number", value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_work_are_named_with_their_domain() {
        let error = Schedule::Piecewise { boundaries: vec![10, 20], values: vec![1.0, 0.5] }.validated().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`values` of the piecewise schedule must be one longer than `boundaries`, got 2 values for 2 boundaries"
        );
        let after = Box::new(Schedule::Cosine { base: 0.1, step_each_epoch: 0, epochs: 3 });
        let error = Schedule::Warmup { warmup_steps: 5, start: 0.0, end: 0.1, after }.validated().unwrap_err();
        assert_eq!(error.to_string(), "`step_each_epoch` of the cosine schedule must be at least 1, got 0");
        assert!(Schedule::from(f64::NAN).validated().is_err());
    }

    #[test]
    fn a_schedule_continues_after_its_last_step() {
        let cosine = Schedule::Cosine { base: 0.1, step_each_epoch: 1, epochs: 3 };
        let cycle = Schedule::Polynomial { base: 0.1, decay_steps: 7, end: 0.01, power: 1.0, cycle: true };
        assert!(cosine.rate(u64::MAX).is_finite() && cycle.rate(u64::MAX).is_finite());
    }
}
