//! x y of integers, element by element; it wraps around.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, integers};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// x y of integers, element by element; it wraps around.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MultiplyIntegers;

impl Net {
    /// x y of integers, element by element; it wraps around.
    pub fn multiply_integers(&mut self, x: Var, y: Var) -> Result<Var> {
        self.append_one("multiply_integers", MultiplyIntegers, &[x, y])
    }
}

impl Operator for MultiplyIntegers {
    fn name(&self) -> &'static str {
        "multiply_integers"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        integers::infer(self.name(), inputs)
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        integers::forward(inputs, outputs, i64::wrapping_mul);
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
