//! The absolute value, element by element. Its slope at 0 is 0, as in PaddlePaddle.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// |x|, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Abs;

impl Net {
    /// |x|, element by element.
    pub fn abs(&mut self, x: Var) -> Result<Var> {
        self.append_one("abs", Abs, &[x])
    }
}

impl Operator for Abs {
    fn name(&self) -> &'static str {
        "abs"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, f32::abs)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |x, _| if x == 0.0 { 0.0 } else { x.signum() })
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Abs", vec![]);
        Ok(())
    }
}
