//! Not x, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, compare, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::DType;

/// Whether x is false, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogicalNot;

impl Net {
    /// Whether x is false, element by element; everything but 0 is true.
    pub fn logical_not(&mut self, x: Var) -> Result<Var> {
        self.append_one("logical_not", LogicalNot, &[x])
    }
}

impl Operator for LogicalNot {
    fn name(&self) -> &'static str {
        "logical_not"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let outputs = unary::infer(self.name(), inputs)?;
        Ok(outputs.into_iter().map(|output| Signature { dtype: DType::Bool, ..output }).collect())
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, |x| compare::truth(x == 0.0))
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
