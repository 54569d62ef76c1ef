//! x / y of integers, rounded down, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, integers};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// x / y of integers, rounded down, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FloorDivide;

impl Net {
    /// x / y of integers, rounded down, element by element.
    pub fn floor_divide(&mut self, x: Var, y: Var) -> Result<Var> {
        self.append_one("floor_divide", FloorDivide, &[x, y])
    }
}

impl Operator for FloorDivide {
    fn name(&self) -> &'static str {
        "floor_divide"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        integers::infer(self.name(), inputs)
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        integers::expect_no_zero(self.name(), inputs)?;
        integers::forward(inputs, outputs, integers::divide);
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
