//! An optimizer that knows in which mode its job trains.

use std::sync::Arc;

use openfleet_core::strategy::Strategy;
use openfleet_engine::{Minimize, Program, Var};
use parking_lot::Mutex;

use crate::error::Result;

/// An optimizer that knows in which mode its job trains: what `distributed_optimizer` makes of an ordinary one.
///
/// The rule is the same wherever it is applied: by a server to its tables, or in this process.
#[derive(Debug, Clone)]
pub struct DistributedOptimizer {
    optimizer: Minimize,
    strategy: Strategy,
    /// What the job trains, once it is said.
    trained: Arc<Mutex<Option<Arc<Program>>>>,
}

impl DistributedOptimizer {
    pub(super) fn new(optimizer: Minimize, strategy: Strategy, trained: Arc<Mutex<Option<Arc<Program>>>>) -> Self {
        DistributedOptimizer { optimizer, strategy, trained }
    }

    /// Appends the backward of `loss` and trains every parameter that has a gradient; gives the pairs of parameter and
    /// gradient. The same on every worker.
    pub fn minimize(&self, program: &mut Program, loss: Var) -> Result<Vec<(Var, Var)>> {
        let pairs = self.optimizer.minimize(program, loss)?;
        *self.trained.lock() = Some(Arc::new(program.clone()));
        Ok(pairs)
    }

    /// The mode and its knobs, resolved.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// The optimizer as it was given.
    pub fn optimizer(&self) -> &Minimize {
        &self.optimizer
    }
}
