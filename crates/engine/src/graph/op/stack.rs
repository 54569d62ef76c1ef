//! Joins tensors of one shape along a new axis.
//!
//! Seen from the axis, every input is `outer x inner` and the result `outer x inputs x inner`.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, shapes, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::Dim;

/// Joins along a new axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    /// The axis in the result, counted from the front.
    pub axis: usize,
    integers: bool,
}

impl Net {
    /// Joins tensors of one shape along a new axis of the result, which may count from the end.
    pub fn stack(&mut self, inputs: &[Var], axis: i64) -> Result<Var> {
        let Some(&first) = inputs.first() else {
            return expected("stack", "at least one input", "none");
        };
        let mut shape = self.shape(first).clone();
        shape.0.push(Dim::Fixed(inputs.len()));
        let Some(axis) = shape.axis(axis) else {
            shape.0.pop();
            return expected("stack", format!("an axis at which {shape} can take another dimension"), axis);
        };
        let integers = !self.main.variable(first).dtype.is_float();
        self.append_one("stack", Stack { axis, integers }, inputs)
    }
}

impl Stack {
    fn inner(&self, inputs: &Inputs<'_>) -> usize {
        inputs.extent(0, self.axis..inputs.rank(0))
    }
}

impl Operator for Stack {
    fn name(&self) -> &'static str {
        "stack"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let first = &inputs[0];
        if inputs.iter().any(|input| input.shape != first.shape) {
            return expected(self.name(), "inputs of one shape", shapes(inputs));
        }
        if inputs.iter().any(|input| input.dtype.is_float() != first.dtype.is_float()) {
            return expected(self.name(), "only floats or only integers", "some of each; `cast` some of them first");
        }
        let mut shape = first.shape.clone();
        shape.0.insert(self.axis, Dim::Fixed(inputs.len()));
        view::moved(self.name(), inputs, shape)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (inner, count) = (self.inner(inputs), inputs.count());
        for input in 0..count {
            if self.integers {
                copy_runs(inputs.ints(input), outputs.ints(0), input, count, inner);
            } else {
                copy_runs(inputs.floats(input), outputs.floats(0), input, count, inner);
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (inner, count) = (self.inner(inputs), inputs.count());
        let out_gradient = inputs.output_gradient(0);
        for input in 0..count {
            let Some(gradient) = gradients.of(input) else { continue };
            let (own, keep) = gradient.begin();
            if inner == 0 {
                continue;
            }
            for (own, all) in own.chunks_exact_mut(inner).zip(out_gradient.chunks_exact(count * inner)) {
                let from = &all[input * inner..][..inner];
                if keep == 0.0 {
                    own.copy_from_slice(from);
                } else {
                    own.iter_mut().zip(from).for_each(|(own, g)| *own += g);
                }
            }
        }
        Ok(())
    }
}

/// Copies the runs of one input to their positions in the result.
fn copy_runs<T: Copy>(from: &[T], to: &mut [T], input: usize, count: usize, inner: usize) {
    if inner == 0 {
        return;
    }
    for (from, to) in from.chunks_exact(inner).zip(to.chunks_exact_mut(count * inner)) {
        to[input * inner..][..inner].copy_from_slice(from);
    }
}
