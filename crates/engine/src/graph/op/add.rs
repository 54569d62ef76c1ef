//! x + y, element by element: residuals, biases, sums of the parts of a logit.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, broadcast};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// x + y, element by element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Add {
    /// The axis of the higher-rank tensor at which the lower-rank tensor starts; -1 aligns at the right.
    pub axis: i64,
}

impl Net {
    /// x + y, element by element.
    /// Dimensions are aligned at the right; dimensions of size 1 are broadcast.
    pub fn add(&mut self, x: Var, y: Var) -> Result<Var> {
        self.add_at(x, y, broadcast::RIGHT)
    }

    /// The same, with the lower-rank tensor starting at `axis` of the other.
    pub fn add_at(&mut self, x: Var, y: Var, axis: i64) -> Result<Var> {
        self.append_one("elementwise_add", Add { axis }, &[x, y])
    }
}

impl Operator for Add {
    fn name(&self) -> &'static str {
        "elementwise_add"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        broadcast::infer(self.name(), inputs, self.axis)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        broadcast::forward(inputs, outputs, self.axis, |x, y| x + y)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        broadcast::backward(inputs, gradients, self.axis, |_, _| 1.0, |_, _| 1.0)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        broadcast::onnx(self.name(), node, self.axis, "Add")
    }
}
