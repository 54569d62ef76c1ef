//! The square root, element by element. Its slope at 0 is infinite: add a small number first if that can happen.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// The square root, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sqrt;

impl Net {
    /// The square root, element by element.
    pub fn sqrt(&mut self, x: Var) -> Result<Var> {
        self.append_one("sqrt", Sqrt, &[x])
    }
}

impl Operator for Sqrt {
    fn name(&self) -> &'static str {
        "sqrt"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, f32::sqrt)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |_, y| 0.5 / y)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Sqrt", vec![]);
        Ok(())
    }
}
