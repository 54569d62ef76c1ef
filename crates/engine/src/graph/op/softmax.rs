//! `y = exp(x) / sum exp(x)` along an axis; the maximum of x is subtracted first, so that nothing overflows.
//!
//! Seen from the axis, x is outer x C x inner: each of the outer x inner groups of C elements, with a stride of `inner`, is one
//! distribution.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};
use crate::memory::{Gradients, Inputs, Outputs};

/// exp(x) / sum exp(x) along an axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Softmax {
    /// The axis, counted from the front.
    pub axis: usize,
}

impl Net {
    /// exp(x) / sum exp(x) along the last axis.
    pub fn softmax(&mut self, x: Var) -> Result<Var> {
        self.softmax_along(x, -1)
    }

    /// exp(x) / sum exp(x) along an axis, which may count from the end.
    pub fn softmax_along(&mut self, x: Var, axis: i64) -> Result<Var> {
        let shape = self.shape(x);
        let Some(axis) = shape.axis(axis) else {
            return expected("softmax", format!("an axis of {shape}"), axis);
        };
        self.append_one("softmax", Softmax { axis }, &[x])
    }
}

impl Softmax {
    /// C x inner and inner, at least 1 each.
    fn view(&self, inputs: &Inputs<'_>) -> (usize, usize) {
        let rank = inputs.rank(0);
        (inputs.extent(0, self.axis..rank).max(1), inputs.extent(0, self.axis + 1..rank).max(1))
    }
}

impl Operator for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (block, inner) = self.view(inputs);
        let x = inputs.floats(0).chunks_exact(block);
        for (x, y) in x.zip(outputs.floats(0).chunks_exact_mut(block)) {
            for j in 0..inner {
                softmax(&x[j..], &mut y[j..], inner);
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (block, inner) = self.view(inputs);
        let (y, dy) = (inputs.output(0).chunks_exact(block), inputs.output_gradient(0).chunks_exact(block));
        for ((y, dy), dx) in y.zip(dy).zip(gradient.accumulate().chunks_exact_mut(block)) {
            for j in 0..inner {
                let pairs = || y[j..].iter().step_by(inner).zip(dy[j..].iter().step_by(inner));
                let along: f32 = pairs().map(|(y, dy)| y * dy).sum();
                for (dx, (y, dy)) in dx[j..].iter_mut().step_by(inner).zip(pairs()) {
                    *dx += y * (dy - along);
                }
            }
        }
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Softmax", vec![("axis", OnnxAttribute::Int(self.axis as i64))]);
        Ok(())
    }
}

/// Computes one distribution, whose elements are `stride` apart. Returns the maximum x and the logarithm of `sum exp(x -
/// maximum)`, so that `ln y = x - maximum - logarithm` needs no logarithm of a small number.
#[inline(always)]
pub(super) fn softmax(x: &[f32], y: &mut [f32], stride: usize) -> (f32, f32) {
    let greatest = x.iter().step_by(stride).fold(f32::NEG_INFINITY, |greatest, &x| greatest.max(x));
    let mut sum = 0.0;
    for (y, &x) in y.iter_mut().step_by(stride).zip(x.iter().step_by(stride)) {
        *y = (x - greatest).exp();
        sum += *y;
    }
    y.iter_mut().step_by(stride).for_each(|y| *y /= sum);
    (greatest, sum.ln())
}
