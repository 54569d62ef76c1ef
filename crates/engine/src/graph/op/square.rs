//! x², element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// x², element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Square;

impl Net {
    /// x², element by element.
    pub fn square(&mut self, x: Var) -> Result<Var> {
        self.append_one("square", Square, &[x])
    }
}

impl Operator for Square {
    fn name(&self) -> &'static str {
        "square"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, |x| x * x)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |x, _| 2.0 * x)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let x = node.input(0);
        node.finish(0, "Mul", &[&x, &x], vec![]);
        Ok(())
    }
}
