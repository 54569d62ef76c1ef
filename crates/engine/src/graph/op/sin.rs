//! The sine of x, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::onnx_builder::OnnxNode;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// The sine of x, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sin;

impl Net {
    /// The sine of x, element by element.
    pub fn sin(&mut self, x: Var) -> Result<Var> {
        self.append_one("sin", Sin, &[x])
    }
}

impl Operator for Sin {
    fn name(&self) -> &'static str {
        "sin"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, f32::sin)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |x, _| x.cos())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Sin", vec![]);
        Ok(())
    }
}
