//! x to the power of a constant, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// x to the power of `factor`, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pow {
    /// The exponent; the name is PaddlePaddle's.
    pub factor: f32,
}

impl Net {
    /// x to the power of `factor`, element by element. For negative x the result is NaN unless `factor` is an integer.
    pub fn pow(&mut self, x: Var, factor: f32) -> Result<Var> {
        self.append_one("pow", Pow { factor }, &[x])
    }
}

impl Operator for Pow {
    fn name(&self) -> &'static str {
        "pow"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        unary::forward(inputs, outputs, |x| x.powf(self.factor))
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let below = self.factor - 1.0;
        unary::backward(inputs, gradients, |x, _| self.factor * x.powf(below))
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let (x, factor) = (node.input(0), node.float(self.factor));
        node.finish(0, "Pow", &[&x, &factor], vec![]);
        Ok(())
    }
}
