//! The logarithm of 1 + x, exact near 0, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// The logarithm of 1 + x, exact near 0, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Log1p;

impl Net {
    /// The logarithm of 1 + x, exact near 0, element by element.
    pub fn log1p(&mut self, x: Var) -> Result<Var> {
        self.append_one("log1p", Log1p, &[x])
    }
}

impl Operator for Log1p {
    fn name(&self) -> &'static str {
        "log1p"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, f32::ln_1p)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |x, _| 1.0 / (1.0 + x))
    }
}
