//! Removes dimensions of size 1.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// Removes dimensions of size 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Squeeze {
    /// The axes, counted from the front or, if negative, from the end; an empty list means every dimension of size 1.
    pub axes: Vec<i64>,
    integers: bool,
}

impl Net {
    /// Removes the dimensions at `axes` that have size 1 and keeps the others; with an empty list, removes all that have size 1.
    /// The batch is never removed, even if it has one row.
    pub fn squeeze(&mut self, x: Var, axes: &[i64]) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        let shape = self.shape(x);
        // The number of dimensions does not depend on the sizes of a batch: those that are 1 by chance stay.
        let axes = match axes.is_empty() {
            true => (0..shape.rank()).filter(|&axis| shape.0[axis] == Dim::Fixed(1)).map(|axis| axis as i64).collect(),
            false => axes.iter().copied().filter(|&axis| !is_per_row(shape, axis)).collect::<Vec<_>>(),
        };
        if axes.is_empty() {
            return self.assign(x);
        }
        self.append_one("squeeze", Squeeze { axes, integers }, &[x])
    }
}

fn is_per_row(shape: &Shape, axis: i64) -> bool {
    shape.axis(axis).is_some_and(|axis| matches!(shape.0[axis], Dim::PerRow(_)))
}

impl Operator for Squeeze {
    fn name(&self) -> &'static str {
        "squeeze"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let shape = &inputs[0].shape;
        let mut chosen = vec![self.axes.is_empty(); shape.rank()];
        for &axis in &self.axes {
            match shape.axis(axis) {
                Some(axis) => chosen[axis] = true,
                None => return expected(self.name(), format!("axes of {shape}"), axis),
            }
        }
        let kept = |(&dim, chosen): (&Dim, bool)| {
            (!matches!(dim, Dim::Fixed(1) | Dim::Unknown) || !chosen).then_some(dim)
        };
        let mut dims: Vec<Dim> = shape.0.iter().zip(chosen).filter_map(kept).collect();
        if dims.is_empty() {
            // A scalar has one dimension.
            dims.push(Dim::Fixed(1));
        }
        view::moved(self.name(), inputs, Shape(dims))
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        view::copy(inputs, outputs, self.integers)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        view::copy_back(inputs, gradients)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let x = node.input(0);
        node.finish_reshaped(0, &x);
        Ok(())
    }
}
