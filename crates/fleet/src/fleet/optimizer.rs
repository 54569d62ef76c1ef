//! An optimizer that knows in which mode its job trains.

use openfleet_core::strategy::Strategy;
use openfleet_engine::{Minimize, Program, Var};

use crate::error::Result;

/// An optimizer that knows in which mode its job trains: what `distributed_optimizer` makes of an ordinary one.
///
/// The rule is the same wherever it is applied: by a server to its tables, or in this process.
#[derive(Debug, Clone)]
pub struct DistributedOptimizer {
    optimizer: Minimize,
    strategy: Strategy,
}

impl DistributedOptimizer {
    pub(super) fn new(optimizer: Minimize, strategy: Strategy) -> Self {
        DistributedOptimizer { optimizer, strategy }
    }

    /// Appends the backward of `loss` and trains every parameter that has a gradient; gives the pairs of parameter and
    /// gradient. The same on every worker.
    pub fn minimize(&self, program: &mut Program, loss: Var) -> Result<Vec<(Var, Var)>> {
        Ok(self.optimizer.minimize(program, loss)?)
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
