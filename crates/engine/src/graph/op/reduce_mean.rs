//! The mean over some axes.

use serde::{Deserialize, Serialize};

use super::reduce::Axes;
use super::reduce_sum::{spread_gradient, sum};
use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// The mean over some axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReduceMean {
    /// The reduced axes.
    pub axes: Axes,
}

impl Net {
    /// The mean over axes, which may count from the end; over all axes if the list is empty. Reduced axes are kept with size 1 if
    /// `keep_dim`.
    pub fn reduce_mean(&mut self, x: Var, axes: &[i64], keep_dim: bool) -> Result<Var> {
        let axes = Axes::resolve("reduce_mean", self.shape(x), axes, keep_dim)?;
        self.append_one("reduce_mean", ReduceMean { axes }, &[x])
    }
}

impl ReduceMean {
    fn share(&self, inputs: &Inputs<'_>) -> f32 {
        1.0 / self.axes.count(inputs).max(1) as f32
    }
}

impl Operator for ReduceMean {
    fn name(&self) -> &'static str {
        "reduce_mean"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        self.axes.infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (y, share) = (outputs.floats(0), self.share(inputs));
        sum(&self.axes, inputs, y);
        y.iter_mut().for_each(|y| *y *= share);
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        spread_gradient(&self.axes, self.share(inputs), inputs, gradients);
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        self.axes.onnx(node, "ReduceMean");
        Ok(())
    }
}
