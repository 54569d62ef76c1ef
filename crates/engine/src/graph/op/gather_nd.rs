//! Parts of a tensor, selected by several indices each.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, view};
use crate::error::{Error, Result};
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// Parts of x, selected by its first K dimensions. Inputs: x `[N1, .., NK, ...]`, index `[.., K]`. The result is
/// `[.., ...]`: the leading dimensions of the index, then those of x that are left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatherNd {
    integers: bool,
}

impl Net {
    /// For each K integers of `index` `[.., K]`, what x has there in its first K dimensions.
    pub fn gather_nd(&mut self, x: Var, index: Var) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("gather_nd", GatherNd { integers }, &[x, index])
    }
}

/// Calls `visit` with the start in x of each part that is selected, which have `width` elements each.
fn each(op: &'static str, inputs: &Inputs<'_>, mut visit: impl FnMut(usize, usize)) -> Result<()> {
    let (count, width) = (inputs.columns(1), inputs.extent(0, inputs.columns(1)..inputs.rank(0)));
    for (row, indices) in inputs.ints(1).chunks_exact(count.max(1)).enumerate() {
        let mut part = 0;
        for (axis, &index) in indices.iter().enumerate() {
            let size = inputs.size(0, axis);
            // Negative indices count from the end.
            let index = index as i64;
            let at = if index < 0 { index + size as i64 } else { index };
            if !(0..size as i64).contains(&at) {
                return Err(Error::Value {
                    op,
                    what: format!("an index of dimension {axis}"),
                    expected: format!("from 0 to {}", size as i64 - 1),
                    got: index.to_string(),
                    row,
                });
            }
            part = part * size + at as usize;
        }
        visit(row, part * width);
    }
    Ok(())
}

impl Operator for GatherNd {
    fn name(&self) -> &'static str {
        "gather_nd"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let (x, index) = (&inputs[0], &inputs[1]);
        match index.shape.0.split_last() {
            Some((&Dim::Fixed(count), leading))
                if index.dtype == DType::I64 && !index.ragged && (1..=x.shape.rank()).contains(&count) =>
            {
                let mut dims = [leading, &x.shape.0[count..]].concat();
                if dims.is_empty() {
                    // A scalar has one dimension.
                    dims.push(Dim::Fixed(1));
                }
                view::moved(self.name(), &inputs[..1], Shape(dims))
            }
            _ => {
                let wanted = format!("an index of integers [.., K] with K up to {}", x.shape.rank());
                expected(self.name(), wanted, format!("{} of {:?}", index.shape, index.dtype))
            }
        }
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let width = inputs.extent(0, inputs.columns(1)..inputs.rank(0));
        if self.integers {
            let (x, out) = (inputs.ints(0), outputs.ints(0));
            each(self.name(), inputs, |row, at| out[row * width..][..width].copy_from_slice(&x[at..][..width]))
        } else {
            let (x, out) = (inputs.floats(0), outputs.floats(0));
            each(self.name(), inputs, |row, at| out[row * width..][..width].copy_from_slice(&x[at..][..width]))
        }
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let width = inputs.extent(0, inputs.columns(1)..inputs.rank(0));
        let (dx, dy) = (gradient.accumulate(), inputs.output_gradient(0));
        each(self.name(), inputs, |row, at| {
            dx[at..][..width].iter_mut().zip(&dy[row * width..][..width]).for_each(|(dx, dy)| *dx += dy);
        })
    }
}
