//! The least integer that is not below x, element by element. It has no slope.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::onnx_builder::OnnxNode;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// The least integer that is not below x, element by element. It has no slope.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceil;

impl Net {
    /// The least integer that is not below x, element by element. It has no slope.
    pub fn ceil(&mut self, x: Var) -> Result<Var> {
        self.append_one("ceil", Ceil, &[x])
    }
}

impl Operator for Ceil {
    fn name(&self) -> &'static str {
        "ceil"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, f32::ceil)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |_, _| 0.0)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Ceil", vec![]);
        Ok(())
    }
}
