//! x or y, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, compare};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// Whether x, y or both are true, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogicalOr;

impl Net {
    /// Whether x, y or both are true, element by element; everything but 0 is true.
    pub fn logical_or(&mut self, x: Var, y: Var) -> Result<Var> {
        self.append_one("logical_or", LogicalOr, &[x, y])
    }
}

impl Operator for LogicalOr {
    fn name(&self) -> &'static str {
        "logical_or"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        compare::infer_logical(self.name(), inputs)
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        compare::forward_logical(inputs, outputs, |x, y| x || y)
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
