//! What remains of x after whole multiples of y, with the sign of y; integers, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, integers};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// What remains of x after whole multiples of y, with the sign of y; integers, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Modulo;

impl Net {
    /// What remains of x after whole multiples of y, with the sign of y; integers, element by element.
    pub fn modulo(&mut self, x: Var, y: Var) -> Result<Var> {
        self.append_one("modulo", Modulo, &[x, y])
    }
}

impl Operator for Modulo {
    fn name(&self) -> &'static str {
        "modulo"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        integers::infer(self.name(), inputs)
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        integers::expect_no_zero(self.name(), inputs)?;
        integers::forward(inputs, outputs, |x, y| x.wrapping_sub(integers::divide(x, y).wrapping_mul(y)));
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
