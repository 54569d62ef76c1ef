//! The sums of the elements so far along an axis.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, expected};
use crate::error::Result;
use crate::graph::onnx_builder::OnnxNode;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// Sums along an axis: element i of the result is the sum of elements 0 to i.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cumsum {
    /// The axis.
    pub axis: usize,
}

impl Net {
    /// The sums of the elements so far along an axis, which may count from the end.
    pub fn cumsum(&mut self, x: Var, axis: i64) -> Result<Var> {
        let shape = self.shape(x);
        let Some(axis) = shape.axis(axis) else { return expected("cumsum", format!("an axis of {shape}"), axis) };
        self.append_one("cumsum", Cumsum { axis }, &[x])
    }
}

impl Cumsum {
    /// The number of elements along the axis, and the distance between two of them.
    fn layout(&self, inputs: &Inputs<'_>) -> (usize, usize) {
        (inputs.size(0, self.axis), inputs.extent(0, self.axis + 1..inputs.rank(0)))
    }
}

impl Operator for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        match inputs[0].shape.rank() > self.axis {
            true => Ok(vec![Signature::float(inputs[0].shape.clone())]),
            false => expected(self.name(), format!("an axis {}", self.axis), &inputs[0].shape),
        }
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let ((n, step), y) = (self.layout(inputs), outputs.floats(0));
        y.copy_from_slice(inputs.floats(0));
        for part in y.chunks_exact_mut((n * step).max(1)) {
            for i in step..part.len() {
                part[i] += part[i - step];
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (n, step) = self.layout(inputs);
        let dy = inputs.output_gradient(0);
        // Element i is part of the sums i and after.
        let mut sums = gradients.take_scratch();
        sums.clear();
        sums.extend_from_slice(dy);
        for part in sums.chunks_exact_mut((n * step).max(1)) {
            for i in (step..part.len()).rev() {
                part[i - step] += part[i];
            }
        }
        if let Some(gradient) = gradients.of(0) {
            gradient.add(|i| sums[i]);
        }
        gradients.put_scratch(sums);
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let (x, axis) = (node.input(0), node.ints(&[self.axis as i64]));
        node.finish(0, "CumSum", &[&x, &axis], vec![]);
        Ok(())
    }
}
