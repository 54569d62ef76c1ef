//! The maximum over some axes.
//!
//! Every element that equals the maximum gets the whole gradient, as in PaddlePaddle.

use serde::{Deserialize, Serialize};

use super::reduce::Axes;
use super::{Operator, Signature};
use crate::kernel;
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// The maximum over some axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReduceMax {
    /// The reduced axes.
    pub axes: Axes,
}

impl Net {
    /// The maximum over axes, which may count from the end; over all axes if the list is empty. Reduced axes are kept with size 1
    /// if `keep_dim`. The maximum of no elements is minus infinity.
    pub fn reduce_max(&mut self, x: Var, axes: &[i64], keep_dim: bool) -> Result<Var> {
        let axes = Axes::resolve("reduce_max", self.shape(x), axes, keep_dim)?;
        self.append_one("reduce_max", ReduceMax { axes }, &[x])
    }
}

impl Operator for ReduceMax {
    fn name(&self) -> &'static str {
        "reduce_max"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        self.axes.infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, y) = (inputs.floats(0), outputs.floats(0));
        y.fill(f32::NEG_INFINITY);
        self.axes.for_each_run(inputs, |from, to| {
            if to.len() == 1 {
                y[to.start] = x[from].iter().fold(y[to.start], |greatest, &x| greater(greatest, x));
            } else {
                y[to].iter_mut().zip(&x[from]).for_each(|(y, &x)| *y = greater(*y, x));
            }
        });
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (x, y, dy) = (inputs.floats(0), inputs.output(0), inputs.output_gradient(0));
        let (dx, keep) = gradient.begin();
        self.axes.for_each_run(inputs, |from, to| {
            // The result has a run as long as the input's, or one element for the whole run.
            let each = usize::from(to.len() > 1);
            for (i, (dx, &x)) in dx[from.clone()].iter_mut().zip(&x[from]).enumerate() {
                let o = to.start + i * each;
                kernel::put(dx, if x == y[o] { dy[o] } else { 0.0 }, keep);
            }
        });
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        self.axes.onnx(node, "ReduceMax");
        Ok(())
    }
}
/// The larger number; NaN if either is NaN.
fn greater(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}
