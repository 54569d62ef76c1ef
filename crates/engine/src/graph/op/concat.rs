//! Joins tensors along an axis.
//!
//! Seen from the axis, every input is `outer x (axis and what follows)`: for each outer index, one run of floats is copied from
//! each input.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, shapes, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// Joins along `axis`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Concat {
    /// The axis, counted from the front.
    pub axis: usize,
    #[serde(default)]
    integers: bool,
}

impl Net {
    /// Joins along an axis, which may count from the end.
    pub fn concat(&mut self, inputs: &[Var], axis: i64) -> Result<Var> {
        let Some(&first) = inputs.first() else {
            return expected("concat", "at least one input", "none");
        };
        let shape = self.shape(first);
        let Some(axis) = shape.axis(axis) else {
            return expected("concat", format!("an axis of {shape}"), axis);
        };
        let integers = !self.main.variable(first).dtype.is_float();
        self.append_one("concat", Concat { axis, integers }, inputs)
    }
}

impl Concat {
    fn run(&self, inputs: &Inputs<'_>, input: usize) -> usize {
        inputs.extent(input, self.axis..inputs.rank(input))
    }
}

impl Operator for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        if inputs.iter().any(|input| input.dtype.is_float() == self.integers) {
            return expected(self.name(), "only floats or only integers", "some of each; `cast` some of them first");
        }
        view::expect_tensors(self.name(), inputs)?;
        let first = &inputs[0].shape;
        let alike = |shape: &Shape| {
            shape.rank() == first.rank()
                && (0..shape.rank()).all(|axis| axis == self.axis || shape.0[axis].merge(first.0[axis]).is_some())
        };
        if !inputs.iter().all(|input| alike(&input.shape)) {
            return expected(self.name(), format!("equal dimensions but for axis {}", self.axis), shapes(inputs));
        }
        let joined = inputs.iter().map(|input| input.shape.0[self.axis]).reduce(|sum, dim| match (sum, dim) {
            (Dim::Fixed(a), Dim::Fixed(b)) => Dim::Fixed(a + b),
            (Dim::PerRow(a), Dim::PerRow(b)) => Dim::PerRow(a + b),
            _ => Dim::Unknown,
        });
        let mut dims = inputs.iter().skip(1).fold(first.0.clone(), |dims, input| {
            dims.iter().zip(&input.shape.0).map(|(a, &b)| a.merge(b).unwrap_or(Dim::Unknown)).collect()
        });
        dims[self.axis] = joined.unwrap_or(Dim::Fixed(0));
        let dtype = if self.integers { DType::I64 } else { DType::F32 };
        Ok(vec![Signature { dtype, ..Signature::float(Shape(dims)) }])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let total: usize = (0..inputs.count()).map(|i| self.run(inputs, i)).sum();
        let mut start = 0;
        for input in 0..inputs.count() {
            let run = self.run(inputs, input);
            if self.integers {
                copy(inputs.ints(input), run, outputs.ints(0), total, start);
            } else {
                copy(inputs.floats(input), run, outputs.floats(0), total, start);
            }
            start += run;
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let out_gradient = inputs.output_gradient(0);
        let total: usize = (0..inputs.count()).map(|i| self.run(inputs, i)).sum();
        let mut start = 0;
        for input in 0..inputs.count() {
            let run = self.run(inputs, input);
            if let Some(gradient) = gradients.of(input).filter(|_| run > 0) {
                let (values, keep) = gradient.begin();
                for (to, row) in values.chunks_exact_mut(run).zip(out_gradient.chunks_exact(total)) {
                    let from = &row[start..start + run];
                    if keep == 0.0 {
                        to.copy_from_slice(from);
                    } else {
                        to.iter_mut().zip(from).for_each(|(t, f)| *t += f);
                    }
                }
            }
            start += run;
        }
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Concat", vec![("axis", OnnxAttribute::Int(self.axis as i64))]);
        Ok(())
    }
}

/// Copies runs of one input to their position in each row of the result.
#[inline(always)]
fn copy<T: Copy>(from: &[T], run: usize, out: &mut [T], total: usize, start: usize) {
    if run > 0 {
        for (row, from) in out.chunks_exact_mut(total).zip(from.chunks_exact(run)) {
            row[start..start + run].copy_from_slice(from);
        }
    }
}
