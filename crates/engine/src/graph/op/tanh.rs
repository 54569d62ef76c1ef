//! The hyperbolic tangent, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::kernel;
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// tanh(x), element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tanh;

impl Net {
    /// tanh(x), element by element.
    pub fn tanh(&mut self, x: Var) -> Result<Var> {
        self.append_one("tanh", Tanh, &[x])
    }
}

impl Operator for Tanh {
    fn name(&self) -> &'static str {
        "tanh"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward_each(inputs, outputs, kernel::transcendental::tanh_each)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |_, y| 1.0 - y * y)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Tanh", vec![]);
        Ok(())
    }
}
