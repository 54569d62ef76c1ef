//! `minimize`: attaches an optimizer to a program.
//!
//! The arithmetic of the update rules is in the table crate, where one implementation serves local training and servers. This
//! file says which rule, at which learning rate, with which decay and clipping. The process that holds the tables applies it.

use std::collections::BTreeMap;

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
    /// Parameters and tables that the rule treats differently, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub exceptions: BTreeMap<String, Exception>,
}

/// How the rule treats one parameter or table differently.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exception {
    /// Another update rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<Optimizer>,
    /// Multiplies the learning rate.
    pub learning_rate: f64,
    /// Whether the weight decay that is part of the rule (of AdamW and Lamb) applies.
    pub weight_decay: bool,
    /// Whether a dense parameter is trained as the rows of a sparse table are: with [`rows_ahead`](openfleet_table::Adam::rows_ahead).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub as_rows: bool,
}

impl Default for Exception {
    fn default() -> Self {
        Exception { optimizer: None, learning_rate: 1.0, weight_decay: true, as_rows: false }
    }
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
            exceptions: BTreeMap::new(),
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

    /// Treats a parameter or table differently.
    pub fn exception(mut self, name: impl Into<String>, exception: Exception) -> Self {
        self.exceptions.insert(name.into(), exception);
        self
    }

    /// The rule and the schedule of a parameter or table.
    pub(crate) fn rule_of(&self, name: &str) -> (Optimizer, Schedule) {
        let exception = self.exceptions.get(name).copied().unwrap_or_default();
        let Exception { learning_rate, weight_decay, .. } = exception;
        let optimizer = exception.optimizer.unwrap_or(self.optimizer);
        let optimizer = if weight_decay { optimizer } else { optimizer.without_weight_decay() };
        (optimizer, self.schedule.clone().scaled(learning_rate))
    }

    /// Whether a dense parameter is trained as rows are.
    pub(crate) fn trains_as_rows(&self, name: &str) -> bool {
        self.exceptions.get(name).is_some_and(|exception| exception.as_rows)
    }

    /// Appends the backward of `loss`, unless the program has it, and trains every parameter that has a gradient. Returns the
    /// pairs of parameter (or table) and gradient.
    ///
    /// # Errors
    ///
    /// If the program has an optimizer already, a setting is out of range (so that this does not fail later, in the first run),
    /// or the program has no variable of the name of an exception, and like [`Program::append_backward`].
    pub fn minimize(&self, program: &mut Program, loss: Var) -> Result<Vec<(Var, Var)>> {
        if let Some(existing) = &program.minimize {
            return Err(Error::AlreadyMinimized { existing: existing.optimizer.name().to_owned() });
        }
        self.optimizer.validate()?;
        self.schedule.validate()?;
        self.regularizer.map_or(Ok(()), |regularizer| regularizer.validate())?;
        self.clip.map_or(Ok(()), |clip| clip.validate())?;
        for name in self.exceptions.keys() {
            program.find(name)?;
            let (optimizer, schedule) = self.rule_of(name);
            optimizer.validate()?;
            schedule.validate()?;
        }
        let pairs = match &program.backward {
            Some(backward) if backward.loss() == loss => program.parameter_gradients(),
            _ => program.append_backward(loss, None, &[])?,
        };
        program.attach_minimize(self.clone());
        Ok(pairs)
    }
}
