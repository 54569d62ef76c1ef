//! `minimize`: the choice of an optimizer, attached to a program.
//!
//! The arithmetic of the rules is the table room's, where one implementation serves local training and servers. This file
//! says which rule, at which rate, with which decay and clipping; whoever keeps the tables applies it.

use openfleet_table::{Clip, NonFinite, Optimizer, Regularizer, Schedule};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::graph::{Program, Var};

/// How a program's parameters are trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Minimize {
    /// The update rule.
    pub optimizer: Optimizer,
    /// The learning rate by global step.
    pub schedule: Schedule,
    /// Added to every gradient whose parameter has none of its own.
    pub regularizer: Option<Regularizer>,
    /// Limits gradients before they are pushed.
    pub clip: Option<Clip>,
    /// What becomes of a gradient that is not finite: it is refused and counted by default.
    #[serde(default)]
    pub non_finite: NonFinite,
}

impl Minimize {
    /// A rule at a constant rate, nothing else.
    pub fn new(optimizer: Optimizer, learning_rate: f64) -> Self {
        Minimize {
            optimizer,
            schedule: Schedule::Constant(learning_rate),
            regularizer: None,
            clip: None,
            non_finite: NonFinite::default(),
        }
    }

    /// With another learning rate by step.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// With weight decay.
    pub fn regularizer(mut self, regularizer: Regularizer) -> Self {
        self.regularizer = Some(regularizer);
        self
    }

    /// With another answer to gradients that are not finite.
    pub fn non_finite(mut self, non_finite: NonFinite) -> Self {
        self.non_finite = non_finite;
        self
    }

    /// With clipping.
    pub fn clip(mut self, clip: Clip) -> Self {
        self.clip = Some(clip);
        self
    }

    /// Appends the backward of `loss`, unless it is there already, and trains every parameter that has a gradient. Gives
    /// the pairs of parameter (or table) and gradient. A number outside its domain is refused here, not when the program
    /// is first run.
    pub fn minimize(&self, program: &mut Program, loss: Var) -> Result<Vec<(Var, Var)>> {
        if let Some(existing) = &program.minimize {
            return Err(Error::AlreadyMinimized { existing: existing.optimizer.name().to_owned() });
        }
        self.optimizer.validate()?;
        self.schedule.validate()?;
        self.regularizer.map_or(Ok(()), |regularizer| regularizer.validate())?;
        self.clip.map_or(Ok(()), |clip| clip.validate())?;
        let pairs = match &program.backward {
            Some(backward) if backward.loss() == loss => program.parameter_gradients(),
            _ => program.append_backward(loss, None, &[])?,
        };
        program.attach_minimize(self.clone());
        Ok(pairs)
    }
}
