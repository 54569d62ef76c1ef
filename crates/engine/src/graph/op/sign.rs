//! -1, 0 or 1 by the sign of x, element by element. It has no slope.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::onnx_builder::OnnxNode;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// -1, 0 or 1 by the sign of x, element by element. It has no slope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sign;

impl Net {
    /// -1, 0 or 1 by the sign of x, element by element. It has no slope.
    pub fn sign(&mut self, x: Var) -> Result<Var> {
        self.append_one("sign", Sign, &[x])
    }
}

impl Operator for Sign {
    fn name(&self) -> &'static str {
        "sign"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { x * 0.0 })
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |_, _| 0.0)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Sign", vec![]);
        Ok(())
    }
}
