//! `y = x / sqrt(sum x^2 + e)` along an axis.
//!
//! Seen from the axis, x is outer x C x inner: each of the outer x inner vectors of C elements, with a stride of `inner`, gets
//! length 1.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// Scales vectors to length 1. Outputs: y, and 1 / length of each vector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct L2Normalize {
    /// The axis, counted from the front.
    pub axis: usize,
    /// e, added to the squared length.
    pub epsilon: f32,
}

impl Net {
    /// Divides by the Euclidean length along an axis, which may count from the end.
    pub fn l2_normalize(&mut self, x: Var, axis: i64) -> Result<Var> {
        self.l2_normalize_with(x, axis, 1e-12)
    }

    /// The same with another epsilon than 1e-12.
    pub fn l2_normalize_with(&mut self, x: Var, axis: i64, epsilon: f32) -> Result<Var> {
        let shape = self.shape(x);
        let Some(axis) = shape.axis(axis) else {
            return expected("l2_normalize", format!("an axis of {shape}"), axis);
        };
        let outputs = self.append("l2_normalize", L2Normalize { axis, epsilon }, &[x])?;
        self.stop_gradient(outputs[1]);
        Ok(outputs[0])
    }
}

impl L2Normalize {
    /// C x inner and inner, at least 1 each.
    fn view(&self, inputs: &Inputs<'_>) -> (usize, usize) {
        let rank = inputs.rank(0);
        (inputs.extent(0, self.axis..rank).max(1), inputs.extent(0, self.axis + 1..rank).max(1))
    }
}

impl Operator for L2Normalize {
    fn name(&self) -> &'static str {
        "l2_normalize"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        let mut lengths = inputs[0].shape.0.clone();
        lengths[self.axis] = Dim::Fixed(1);
        Ok(vec![Signature::float(inputs[0].shape.clone()), Signature::float(Shape(lengths))])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (block, inner) = self.view(inputs);
        let (y, inverses) = outputs.two_floats(0, 1);
        let blocks = inputs.floats(0).chunks_exact(block).zip(y.chunks_exact_mut(block));
        for ((x, y), inverses) in blocks.zip(inverses.chunks_exact_mut(inner)) {
            for (j, inverse) in inverses.iter_mut().enumerate() {
                let squares: f32 = x[j..].iter().step_by(inner).map(|x| x * x).sum();
                *inverse = 1.0 / (squares + self.epsilon).sqrt();
                for (y, x) in y[j..].iter_mut().step_by(inner).zip(x[j..].iter().step_by(inner)) {
                    *y = x * *inverse;
                }
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (block, inner) = self.view(inputs);
        let (y, dy) = (inputs.output(0).chunks_exact(block), inputs.output_gradient(0).chunks_exact(block));
        let blocks = y.zip(dy).zip(inputs.output(1).chunks_exact(inner));
        for (((y, dy), inverses), dx) in blocks.zip(gradient.accumulate().chunks_exact_mut(block)) {
            for (j, inverse) in inverses.iter().enumerate() {
                let pairs = || y[j..].iter().step_by(inner).zip(dy[j..].iter().step_by(inner));
                let along: f32 = pairs().map(|(y, dy)| y * dy).sum();
                for (dx, (y, dy)) in dx[j..].iter_mut().step_by(inner).zip(pairs()) {
                    *dx += (dy - y * along) * inverse;
                }
            }
        }
        Ok(())
    }
}
