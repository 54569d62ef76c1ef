//! Inserts dimensions of size 1.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::Dim;

/// Inserts dimensions of size 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unsqueeze {
    /// The axes, inserted in order; a negative one counts from the end of the result so far.
    pub axes: Vec<i64>,
    integers: bool,
}

impl Net {
    /// Inserts a dimension of size 1 at each of `axes`, in order; a negative axis counts from the end.
    pub fn unsqueeze(&mut self, x: Var, axes: &[i64]) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("unsqueeze", Unsqueeze { axes: axes.to_vec(), integers }, &[x])
    }
}

impl Operator for Unsqueeze {
    fn name(&self) -> &'static str {
        "unsqueeze"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let mut shape = inputs[0].shape.clone();
        for &axis in &self.axes {
            // The axis refers to the shape with one more dimension.
            shape.0.push(Dim::Fixed(1));
            let Some(at) = shape.axis(axis) else {
                shape.0.pop();
                return expected(self.name(), format!("axes at which {shape} can take another dimension"), axis);
            };
            shape.0.pop();
            shape.0.insert(at, Dim::Fixed(1));
        }
        view::moved(self.name(), inputs, shape)
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
