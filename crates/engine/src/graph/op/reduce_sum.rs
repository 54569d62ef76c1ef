//! The sum over some axes.

use serde::{Deserialize, Serialize};

use super::reduce::Axes;
use super::{Operator, Signature};
use crate::kernel;
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// The sum over some axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReduceSum {
    /// The reduced axes.
    pub axes: Axes,
}

impl Net {
    /// The sum over axes, which may count from the end; over all axes if the list is empty. Reduced axes are kept with size 1 if
    /// `keep_dim`.
    pub fn reduce_sum(&mut self, x: Var, axes: &[i64], keep_dim: bool) -> Result<Var> {
        let axes = Axes::resolve("reduce_sum", self.shape(x), axes, keep_dim)?;
        self.append_one("reduce_sum", ReduceSum { axes }, &[x])
    }
}

impl Operator for ReduceSum {
    fn name(&self) -> &'static str {
        "reduce_sum"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        self.axes.infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        sum(&self.axes, inputs, outputs.floats(0));
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        spread_gradient(&self.axes, 1.0, inputs, gradients);
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        self.axes.onnx(node, "ReduceSum");
        Ok(())
    }
}

/// Writes the sums into `y`.
pub(super) fn sum(axes: &Axes, inputs: &Inputs<'_>, y: &mut [f32]) {
    let x = inputs.floats(0);
    y.fill(0.0);
    axes.for_each_run(inputs, |from, to| {
        if to.len() == 1 {
            y[to.start] += kernel::sum(&x[from]) as f32;
        } else {
            kernel::add(&x[from], &mut y[to]);
        }
    });
}

/// Adds `factor` times the gradient of a sum to the gradient of every element of that sum.
pub(super) fn spread_gradient(axes: &Axes, factor: f32, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) {
    let Some(gradient) = gradients.of(0) else { return };
    let dy = inputs.output_gradient(0);
    let (dx, keep) = gradient.begin();
    axes.for_each_run(inputs, |from, to| {
        if to.len() == 1 {
            let share = factor * dy[to.start];
            dx[from].iter_mut().for_each(|dx| kernel::put(dx, share, keep));
        } else {
            dx[from].iter_mut().zip(&dy[to]).for_each(|(dx, &dy)| kernel::put(dx, factor * dy, keep));
        }
    });
}
