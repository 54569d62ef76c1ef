//! The cosine of x, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::onnx_builder::OnnxNode;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// The cosine of x, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cos;

impl Net {
    /// The cosine of x, element by element.
    pub fn cos(&mut self, x: Var) -> Result<Var> {
        self.append_one("cos", Cos, &[x])
    }
}

impl Operator for Cos {
    fn name(&self) -> &'static str {
        "cos"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, f32::cos)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |x, _| -x.sin())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Cos", vec![]);
        Ok(())
    }
}
