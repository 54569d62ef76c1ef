//! A tensor with some of its rows replaced, or added to.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::error::{Error, Result};
use crate::graph::{Net, Var};
use crate::kernel;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim};

/// x with rows replaced. Inputs: x `[N, ...]`, index `[M]` or `[M, 1]`, updates `[M, ...]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scatter {
    /// Replaces rows, the last update of a row counts; otherwise the updates of a row are summed, in place of the row.
    pub overwrite: bool,
    /// Adds the updates to the row instead.
    pub add: bool,
}

impl Net {
    /// x `[N, ...]` with row `index[i]` replaced by row i of `updates`. If rows are named more than once, the last one counts; with
    /// `overwrite` false their sum.
    pub fn scatter(&mut self, x: Var, index: Var, updates: Var, overwrite: bool) -> Result<Var> {
        self.append_one("scatter", Scatter { overwrite, add: false }, &[x, index, updates])
    }

    /// x `[N, ...]` with row i of `updates` added to row `index[i]`.
    pub fn scatter_add(&mut self, x: Var, index: Var, updates: Var) -> Result<Var> {
        self.append_one("scatter_add", Scatter { overwrite: false, add: true }, &[x, index, updates])
    }
}

impl Operator for Scatter {
    fn name(&self) -> &'static str {
        "scatter"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let [x, index, updates] = inputs else { return expected(self.name(), "x, index and updates", shapes(inputs)) };
        expect_floats(self.name(), std::slice::from_ref(x))?;
        expect_floats(self.name(), std::slice::from_ref(updates))?;
        let one_each = matches!(index.shape.0[..], [_] | [_, Dim::Fixed(1)]) && index.dtype == DType::I64 && !index.ragged;
        let alike = |(a, b): (&Dim, &Dim)| a.agrees(*b);
        let fits = one_each
            && x.shape.rank() > 0
            && x.shape.rank() == updates.shape.rank()
            && x.shape.0[1..].iter().zip(&updates.shape.0[1..]).all(alike)
            && alike((&index.shape.0[0], &updates.shape.0[0]));
        match fits {
            true => Ok(vec![x.clone()]),
            false => expected(self.name(), "x [N, ..], an index of integers [M], and updates [M, ..]", shapes(inputs)),
        }
    }

    fn has_gradient(&self, input: usize) -> bool {
        input != 1
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (rows, index, updates, y) = (inputs.size(0, 0), inputs.ints(1), inputs.floats(2), outputs.floats(0));
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
        y.copy_from_slice(inputs.floats(0));
        if !self.overwrite && !self.add {
            index.iter().for_each(|&at| y[at as usize * width..][..width].fill(0.0));
        }
        for (&at, update) in index.iter().zip(updates.chunks_exact(width.max(1))) {
            let row = &mut y[at as usize * width..][..width];
            match self.overwrite {
                true => row.copy_from_slice(update),
                false => row.iter_mut().zip(update).for_each(|(y, update)| *y += update),
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (index, dy) = (inputs.ints(1), inputs.output_gradient(0));
        let (rows, width) = (inputs.size(0, 0), inputs.extent(0, 1..inputs.rank(0)).max(1));
        // Per row: the share of its gradient that goes to x, then whether a later update has replaced it.
        let mut marks = gradients.take_scratch();
        marks.clear();
        marks.resize(rows, 1.0);
        if !self.add {
            index.iter().for_each(|&at| marks[at as usize] = 0.0);
        }
        if let Some(gradient) = gradients.of(0) {
            let (dx, keep) = gradient.begin();
            for ((dx, dy), &share) in dx.chunks_exact_mut(width).zip(dy.chunks_exact(width)).zip(&marks) {
                dx.iter_mut().zip(dy).for_each(|(dx, &dy)| kernel::put(dx, share * dy, keep));
            }
        }
        if let Some(gradient) = gradients.of(2) {
            let own = gradient.accumulate();
            marks.fill(0.0);
            for (&at, own) in index.iter().zip(own.chunks_exact_mut(width)).rev() {
                let is_replaced = self.overwrite && std::mem::replace(&mut marks[at as usize], 1.0) == 1.0;
                if !is_replaced {
                    own.iter_mut().zip(&dy[at as usize * width..][..width]).for_each(|(own, dy)| *own += dy);
                }
            }
        }
        gradients.put_scratch(marks);
        Ok(())
    }
}
