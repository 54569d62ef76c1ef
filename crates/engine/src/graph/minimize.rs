//! `minimize`: attaches an optimizer to a program.
//!
//! The arithmetic of the update rules is in the table crate, where one implementation serves local training and servers. This
//! file says which rule, at which learning rate, with which decay and clipping. The process that holds the tables applies it.

use openfleet_table::{Clip, NonFinite, Optimizer, Regularizer, Schedule};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::graph::{Program, Var};

/// How a program's parameters are trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Minimize {
    /// The update rule.
    pub optimizer: Optimizer,
    /// The learning rate as a function of the global step.
    pub schedule: Schedule,
    /// Added to the gradient of every parameter that has no regularizer of its own.
    pub regularizer: Option<Regularizer>,
    /// Limits gradients before they are pushed.
    pub clip: Option<Clip>,
    /// What to do with a gradient that is not finite. By default it is refused and counted.
    #[serde(default)]
    pub non_finite: NonFinite,
}

impl Minimize {
    /// A rule at a constant learning rate and nothing else.
    pub fn new(optimizer: Optimizer, learning_rate: f64) -> Self {
        Minimize {
            optimizer,
            schedule: Schedule::Constant(learning_rate),
            regularizer: None,
            clip: None,
            non_finite: NonFinite::default(),
        }
    }

    /// Sets the learning rate schedule.
    pub fn schedule(mut self, schedule: Schedule) -> Self {
        self.schedule = schedule;
        self
    }

    /// Sets the weight decay.
    pub fn regularizer(mut self, regularizer: Regularizer) -> Self {
        self.regularizer = Some(regularizer);
        self
    }

    /// Sets what to do with gradients that are not finite.
    pub fn non_finite(mut self, non_finite: NonFinite) -> Self {
        self.non_finite = non_finite;
        self
    }

    /// Sets the clipping.
    pub fn clip(mut self, clip: Clip) -> Self {
        self.clip = Some(clip);
        self
    }

    /// Appends the backward of `loss`, unless the program has it, and trains every parameter that has a gradient. Returns the
    /// pairs of parameter (or table) and gradient.
    ///
    /// # Errors
    ///
    /// If the program has an optimizer already or a setting is out of range (so that this does not fail later, in the first run),
    /// and like [`Program::append_backward`].
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
