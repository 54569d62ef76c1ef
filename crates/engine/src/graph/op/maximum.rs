//! The larger of x and y, element by element. Where both are equal the gradient goes to y, as in PaddlePaddle.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, broadcast};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// The larger of x and y, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Maximum {
    /// The axis of the higher-rank tensor at which the lower-rank tensor starts; -1 aligns at the right.
    pub axis: i64,
}

impl Net {
    /// The larger of x and y, element by element.
    /// Dimensions are aligned at the right; dimensions of size 1 are broadcast.
    pub fn maximum(&mut self, x: Var, y: Var) -> Result<Var> {
        self.maximum_at(x, y, broadcast::RIGHT)
    }

    /// The same, with the lower-rank tensor starting at `axis` of the other.
    pub fn maximum_at(&mut self, x: Var, y: Var, axis: i64) -> Result<Var> {
        self.append_one("elementwise_max", Maximum { axis }, &[x, y])
    }
}

impl Operator for Maximum {
    fn name(&self) -> &'static str {
        "elementwise_max"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        broadcast::infer(self.name(), inputs, self.axis)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        broadcast::forward(inputs, outputs, self.axis, |x, y| if x > y || x.is_nan() { x } else { y })
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        broadcast::backward(
            inputs,
            gradients,
            self.axis,
            |x, y| if x > y { 1.0 } else { 0.0 },
            |x, y| if x > y { 0.0 } else { 1.0 },
        )
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        broadcast::onnx(self.name(), node, self.axis, "Max")
    }
}
