//! A constant times x plus a constant, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// `scale * x + bias`, or `scale * (x + bias)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// The factor.
    pub scale: f32,
    /// The summand.
    pub bias: f32,
    /// Whether the bias is added to the product rather than to x.
    pub bias_after_scale: bool,
}

impl Net {
    /// `scale * x + bias`, element by element.
    pub fn scale(&mut self, x: Var, scale: f32, bias: f32) -> Result<Var> {
        self.scale_with(x, scale, bias, true)
    }

    /// `scale * x + bias` or, without `bias_after_scale`, `scale * (x + bias)`.
    pub fn scale_with(&mut self, x: Var, scale: f32, bias: f32, bias_after_scale: bool) -> Result<Var> {
        self.append_one("scale", Scale { scale, bias, bias_after_scale }, &[x])
    }
}

impl Operator for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (scale, bias) = (self.scale, self.bias);
        if self.bias_after_scale {
            unary::forward(inputs, outputs, |x| scale * x + bias)
        } else {
            unary::forward(inputs, outputs, |x| scale * (x + bias))
        }
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let scale = self.scale;
        unary::backward(inputs, gradients, |_, _| scale)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let (x, scale, bias) = (node.input(0), node.float(self.scale), node.float(self.bias));
        if self.bias_after_scale {
            let scaled = node.emit("Mul", &[&x, &scale], vec![]);
            node.finish(0, "Add", &[&scaled, &bias], vec![]);
        } else {
            let moved = node.emit("Add", &[&x, &bias], vec![]);
            node.finish(0, "Mul", &[&moved, &scale], vec![]);
        }
        Ok(())
    }
}
