//! max(x, 0), element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::kernel;
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// max(x, 0), element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Relu;

impl Net {
    /// max(x, 0), element by element.
    pub fn relu(&mut self, x: Var) -> Result<Var> {
        self.append_one("relu", Relu, &[x])
    }
}

impl Operator for Relu {
    fn name(&self) -> &'static str {
        "relu"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, kernel::relu)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |_, y| if y > 0.0 { 1.0 } else { 0.0 })
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Relu", vec![]);
        Ok(())
    }
}
