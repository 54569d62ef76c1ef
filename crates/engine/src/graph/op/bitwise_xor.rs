//! The bits that one of x and y has, integers, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, integers};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// The bits that one of x and y has, integers, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BitwiseXor;

impl Net {
    /// The bits that one of x and y has, integers, element by element.
    pub fn bitwise_xor(&mut self, x: Var, y: Var) -> Result<Var> {
        self.append_one("bitwise_xor", BitwiseXor, &[x, y])
    }
}

impl Operator for BitwiseXor {
    fn name(&self) -> &'static str {
        "bitwise_xor"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        integers::infer(self.name(), inputs)
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        integers::forward(inputs, outputs, |x, y| x ^ y);
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
