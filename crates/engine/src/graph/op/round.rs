//! The nearest integer, element by element; halves go away from 0. It has no slope.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// The nearest integer, element by element; halves go away from 0. It has no slope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round;

impl Net {
    /// The nearest integer, element by element; halves go away from 0. It has no slope.
    pub fn round(&mut self, x: Var) -> Result<Var> {
        self.append_one("round", Round, &[x])
    }
}

impl Operator for Round {
    fn name(&self) -> &'static str {
        "round"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, f32::round)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |_, _| 0.0)
    }
}
