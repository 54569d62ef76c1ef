//! An optimizer with the strategy of its job.

use std::collections::BTreeMap;
use std::sync::Arc;

use openfleet_core::strategy::Strategy;
use openfleet_engine::{Exception, Minimize, Program, Var};
use parking_lot::Mutex;

use crate::error::Result;

/// An optimizer with the strategy of its job: the result of [`super::Fleet::distributed_optimizer`].
///
/// Servers and a local process apply the same update rule.
#[derive(Debug, Clone)]
pub struct DistributedOptimizer {
    optimizer: Minimize,
    strategy: Strategy,
    /// The program that the job trains, after `minimize`.
    trained: Arc<Mutex<Option<Arc<Program>>>>,
}

impl DistributedOptimizer {
    pub(super) fn new(optimizer: Minimize, strategy: Strategy, trained: Arc<Mutex<Option<Arc<Program>>>>) -> Self {
        DistributedOptimizer { optimizer, strategy, trained }
    }

    /// Treats parameters or tables differently, by name: for choices that depend on the program.
    #[must_use]
    pub fn with_exceptions(mut self, exceptions: BTreeMap<String, Exception>) -> Self {
        self.optimizer.exceptions.extend(exceptions);
        self
    }

    /// Appends the backward pass of `loss` and trains every parameter that has a gradient. Returns pairs of parameter and
    /// gradient. Must be called the same way on every worker.
    pub fn minimize(&self, program: &mut Program, loss: Var) -> Result<Vec<(Var, Var)>> {
        let pairs = self.optimizer.minimize(program, loss)?;
        *self.trained.lock() = Some(Arc::new(program.clone()));
        Ok(pairs)
    }

    /// The resolved mode and settings.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// The optimizer as it was given.
    pub fn optimizer(&self) -> &Minimize {
        &self.optimizer
    }
}
