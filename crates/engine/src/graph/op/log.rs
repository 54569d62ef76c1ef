//! The natural logarithm, element by element. It is minus infinity for 0 and NaN for negative numbers, as in PaddlePaddle.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// ln(x), element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Log;

impl Net {
    /// ln(x), element by element.
    pub fn log(&mut self, x: Var) -> Result<Var> {
        self.append_one("log", Log, &[x])
    }
}

impl Operator for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, f32::ln)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        unary::backward(inputs, gradients, |x, _| 1.0 / x)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Log", vec![]);
        Ok(())
    }
}
