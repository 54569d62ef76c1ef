//! Rows of a tensor, selected by index.
//!
//! This is for tensors that the program computes or holds whole; `embedding` looks ids up in a sparse table.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, view};
use crate::error::{Error, Result};
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim};

/// Rows of x, selected by index. Inputs: x `[N, ...]`, index `[M]` or `[M, 1]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gather {
    integers: bool,
}

impl Net {
    /// Row `index[i]` of x `[N, ...]` as row i of the result; `index` has integers from 0 to N - 1 and shape `[M]` or
    /// `[M, 1]`.
    pub fn gather(&mut self, x: Var, index: Var) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("gather", Gather { integers }, &[x, index])
    }
}

impl Operator for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let (x, index) = (&inputs[0].shape, &inputs[1]);
        let one_each = matches!(index.shape.0[..], [_] | [_, Dim::Fixed(1)]);
        if index.dtype != DType::I64 || index.ragged || !one_each {
            let got = match (index.dtype.is_float(), index.ragged) {
                (true, _) => format!("floats of shape {}", index.shape),
                (false, true) => "a slot of variable length".into(),
                (false, false) => index.shape.to_string(),
            };
            return expected(self.name(), "an index of integers, [M] or [M, 1]", got);
        }
        if x.rank() == 0 {
            return expected(self.name(), "rows to select from", x);
        }
        let mut shape = x.clone();
        shape.0[0] = index.shape.0[0];
        view::moved(self.name(), inputs, shape)
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (rows, index) = (inputs.size(0, 0), inputs.ints(1));
        // As `u64` bits, a negative number is larger than any row's index.
        if let Some(row) = index.iter().position(|&at| at >= rows as u64) {
            return Err(Error::Value {
                op: self.name(),
                what: "an index".into(),
                expected: format!("from 0 to {}, the last row of x", rows as i64 - 1),
                got: (index[row] as i64).to_string(),
                row,
            });
        }
        let width = inputs.extent(0, 1..inputs.rank(0));
        if self.integers {
            pick(inputs.ints(0), index, width, outputs.ints(0));
        } else {
            pick(inputs.floats(0), index, width, outputs.floats(0));
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let own = gradient.accumulate();
        let width = inputs.extent(0, 1..inputs.rank(0));
        if width == 0 {
            return Ok(());
        }
        for (&at, from) in inputs.ints(1).iter().zip(inputs.output_gradient(0).chunks_exact(width)) {
            own[at as usize * width..][..width].iter_mut().zip(from).for_each(|(own, g)| *own += g);
        }
        Ok(())
    }
}

fn pick<T: Copy>(x: &[T], index: &[u64], width: usize, out: &mut [T]) {
    if width == 0 {
        return;
    }
    for (&at, out) in index.iter().zip(out.chunks_exact_mut(width)) {
        out.copy_from_slice(&x[at as usize * width..][..width]);
    }
}
