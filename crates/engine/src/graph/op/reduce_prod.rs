//! The product over some axes.

use serde::{Deserialize, Serialize};

use super::reduce::Axes;
use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::onnx_builder::OnnxNode;
use crate::graph::{Net, Var};
use crate::kernel;
use crate::memory::{Gradients, Inputs, Outputs};

/// The product over some axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReduceProd {
    /// The reduced axes.
    pub axes: Axes,
}

impl Net {
    /// The product over axes, which may count from the end; over all axes if the list is empty. Reduced axes are kept with size 1
    /// if `keep_dim`.
    pub fn reduce_prod(&mut self, x: Var, axes: &[i64], keep_dim: bool) -> Result<Var> {
        let axes = Axes::resolve("reduce_prod", self.shape(x), axes, keep_dim)?;
        self.append_one("reduce_prod", ReduceProd { axes }, &[x])
    }
}

impl Operator for ReduceProd {
    fn name(&self) -> &'static str {
        "reduce_prod"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        self.axes.infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, y) = (inputs.floats(0), outputs.floats(0));
        y.fill(1.0);
        self.axes.for_each_run(inputs, |from, to| {
            if to.len() == 1 {
                y[to.start] = x[from].iter().fold(y[to.start], |product, x| product * x);
            } else {
                y[to].iter_mut().zip(&x[from]).for_each(|(y, x)| *y *= x);
            }
        });
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (x, dy) = (inputs.floats(0), inputs.output_gradient(0));
        // The slope of a factor is the product of the others. If one factor is 0, only its own slope is not 0; if two are, none is.
        let mut scratch = gradients.take_scratch();
        scratch.clear();
        scratch.resize(2 * dy.len(), 1.0);
        let (others, zeros) = scratch.split_at_mut(dy.len());
        zeros.fill(0.0);
        let each = |to: &std::ops::Range<usize>| usize::from(to.len() > 1);
        self.axes.for_each_run(inputs, |from, to| {
            for (i, &x) in x[from].iter().enumerate() {
                let o = to.start + i * each(&to);
                if x == 0.0 { zeros[o] += 1.0 } else { others[o] *= x }
            }
        });
        if let Some(gradient) = gradients.of(0) {
            let (dx, keep) = gradient.begin();
            self.axes.for_each_run(inputs, |from, to| {
                for (i, (dx, &x)) in dx[from.clone()].iter_mut().zip(&x[from]).enumerate() {
                    let o = to.start + i * each(&to);
                    let slope = match (zeros[o] as usize, x == 0.0) {
                        (0, _) => others[o] / x,
                        (1, true) => others[o],
                        _ => 0.0,
                    };
                    kernel::put(dx, dy[o] * slope, keep);
                }
            });
        }
        gradients.put_scratch(scratch);
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        self.axes.onnx(node, "ReduceProd");
        Ok(())
    }
}
