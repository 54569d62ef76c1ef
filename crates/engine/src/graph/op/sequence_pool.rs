//! One row for each sequence: the sum, mean or maximum of its rows, or its first or last row.
//!
//! x `[N, ...]` with N rows of W elements, lengths `[B]`, the result `[B, ...]`. A sequence without rows gives a constant.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::sequence::{elements, expect_sequences, rows_of_sequences, with_leading};
use super::{Operator, Signature, expect_floats};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::kernel;
use crate::memory::{Gradients, Inputs, Outputs};

/// How the rows of a sequence become one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SequencePooling {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum divided by the square root of their number.
    Sqrtn,
    /// The greatest of their elements, in each place.
    Max,
    /// The first one.
    First,
    /// The last one.
    Last,
}

/// One row for each sequence. Inputs: x, lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequencePool {
    /// How the rows of a sequence become one row.
    pub pooling: SequencePooling,
    /// The elements of the result for a sequence without rows.
    pub empty: f32,
}

impl Net {
    /// Pools the rows of each sequence that `x` joins; a sequence without rows gives `empty` in every element.
    pub fn sequence_pool(&mut self, x: Var, pooling: SequencePooling, empty: f32) -> Result<Var> {
        let lengths = self.lengths_for("sequence_pool", x)?;
        self.append_one("sequence_pool", SequencePool { pooling, empty }, &[x, lengths])
    }
}

impl SequencePooling {
    /// The factor of a sum over this many rows.
    fn factor(self, count: usize) -> f32 {
        match self {
            SequencePooling::Mean => 1.0 / count as f32,
            SequencePooling::Sqrtn => 1.0 / (count as f32).sqrt(),
            _ => 1.0,
        }
    }

    /// The rows that are added up; none for the maximum.
    fn summed(self, rows: Range<usize>) -> Range<usize> {
        match self {
            SequencePooling::Sum | SequencePooling::Mean | SequencePooling::Sqrtn => rows,
            SequencePooling::First => rows.start..rows.start + 1,
            SequencePooling::Last => rows.end - 1..rows.end,
            SequencePooling::Max => 0..0,
        }
    }
}

/// The position of the first greatest element of a column; a NaN counts as the greatest, so that it is not hidden.
fn greatest(x: &[f32], width: usize, column: usize) -> usize {
    let mut best = column;
    for at in (column..x.len()).step_by(width) {
        if x[best].is_nan() {
            break;
        }
        if x[at] > x[best] || x[at].is_nan() {
            best = at;
        }
    }
    best
}

impl Operator for SequencePool {
    fn name(&self) -> &'static str {
        "sequence_pool"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), &inputs[..1])?;
        expect_sequences(self.name(), inputs)?;
        Ok(vec![Signature::float(with_leading(&inputs[1].shape.0, &inputs[0].shape))])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let width = inputs.extent(0, 1..inputs.rank(0)).max(1);
        let (x, out) = (inputs.floats(0), outputs.floats(0));
        for (rows, out) in rows_of_sequences(self.name(), inputs)?.zip(out.chunks_exact_mut(width)) {
            if rows.is_empty() {
                out.fill(self.empty);
                continue;
            }
            if self.pooling == SequencePooling::Max {
                let x = &x[elements(rows, width)];
                out.iter_mut().enumerate().for_each(|(column, out)| *out = x[greatest(x, width, column)]);
                continue;
            }
            let factor = self.pooling.factor(rows.len());
            out.fill(0.0);
            x[elements(self.pooling.summed(rows), width)].chunks_exact(width).for_each(|row| kernel::add(row, out));
            if factor != 1.0 {
                out.iter_mut().for_each(|out| *out *= factor);
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let width = inputs.extent(0, 1..inputs.rank(0)).max(1);
        let (x, dx) = (inputs.floats(0), gradient.accumulate());
        let sequences = rows_of_sequences(self.name(), inputs)?.zip(inputs.output_gradient(0).chunks_exact(width));
        for (rows, dy) in sequences.filter(|(rows, _)| !rows.is_empty()) {
            if self.pooling == SequencePooling::Max {
                let range = elements(rows, width);
                let (x, dx) = (&x[range.clone()], &mut dx[range]);
                dy.iter().enumerate().for_each(|(column, dy)| dx[greatest(x, width, column)] += dy);
                continue;
            }
            let factor = self.pooling.factor(rows.len());
            let summed = &mut dx[elements(self.pooling.summed(rows), width)];
            summed.chunks_exact_mut(width).for_each(|dx| kernel::add_scaled(factor, dy, dx));
        }
        Ok(())
    }
}
