//! `minimize`: the choice of an optimizer, attached to a program.
//!
//! The arithmetic of the rules is the table room's, where one implementation serves local training and servers. This file
//! says which rule, at which rate, with which decay and clipping; whoever keeps the tables applies it.

use openfleet_dist::stage::{DenseStage, SparseStage};
use openfleet_table::{Optimizer, Regularizer, Schedule, clip};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::program::{Program, Var};

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
}

impl Minimize {
    /// A rule at a constant rate, nothing else.
    pub fn new(optimizer: Optimizer, learning_rate: f64) -> Self {
        Minimize { optimizer, schedule: Schedule::constant(learning_rate), regularizer: None, clip: None }
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

    /// With clipping.
    pub fn clip(mut self, clip: Clip) -> Self {
        self.clip = Some(clip);
        self
    }

    /// Appends the backward of `loss` and trains every parameter that leads to it.
    pub fn minimize(&self, program: &mut Program, loss: Var) -> Result<Vec<(Var, Var)>> {
        if let Some(existing) = &program.minimize {
            return Err(Error::AlreadyMinimized { existing: format!("{:?}", existing.optimizer) });
        }
        let pairs = match &program.backward {
            Some(backward) if backward.loss() == loss => backward.gradients().collect(),
            _ => program.append_backward(loss, None, &[])?,
        };
        program.minimize = Some(self.clone());
        Ok(pairs)
    }
}

/// How gradients are limited, on the worker, before they travel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Clip {
    /// Every element into `[min, max]`.
    Value {
        /// Lower bound.
        min: f32,
        /// Upper bound.
        max: f32,
    },
    /// Each parameter's gradient to at most this norm.
    Norm(f32),
    /// All gradients together to at most this norm.
    GlobalNorm(f32),
}

impl Clip {
    pub(crate) fn apply(&self, sparse: &mut [SparseStage], dense: &mut [DenseStage]) {
        let mut all = dense.iter_mut().map(|stage| stage.gradient.as_mut_slice()).chain(
            sparse
                .iter_mut()
                .flat_map(|stage| stage.lookups.iter_mut().map(|lookup| lookup.gradients.as_mut_slice())),
        );
        match *self {
            Clip::Value { min, max } => all.for_each(|gradient| clip::by_value(gradient, min, max)),
            Clip::Norm(limit) => all.for_each(|gradient| clip::by_norm(gradient, limit)),
            Clip::GlobalNorm(limit) => {
                let sum: f64 = dense
                    .iter()
                    .map(|stage| clip::sum_of_squares(&stage.gradient))
                    .chain(sparse.iter().flat_map(|s| s.lookups.iter().map(|l| clip::sum_of_squares(&l.gradients))))
                    .sum();
                let factor = clip::global_factor(sum, limit);
                if factor < 1.0 {
                    let all = dense.iter_mut().map(|stage| &mut stage.gradient).chain(
                        sparse.iter_mut().flat_map(|stage| stage.lookups.iter_mut().map(|lookup| &mut lookup.gradients)),
                    );
                    all.for_each(|gradient| gradient.iter_mut().for_each(|g| *g *= factor));
                }
            }
        }
    }
}
