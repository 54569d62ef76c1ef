//! For each row of a sequence, the rows around it side by side: the input of a convolution over sequences.
//!
//! x `[N, D]`, lengths `[B]`, windows of L rows, the result `[N, L D]`. Places outside of the sequence are zeros.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::sequence::{expect_sequences, rows_of_sequences};
use super::{Operator, Signature, expect_floats, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::kernel;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// The rows around each row. Inputs: x, lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequenceWindow {
    /// The first row of a window, from its own row; usually negative.
    pub start: i64,
    /// L.
    pub length: usize,
}

impl Net {
    /// For each row of the sequences that `x` joins, `length` rows of its sequence side by side, from the one `start` rows
    /// after it on; zeros where the sequence has no such row. `fc` of it is a convolution over sequences.
    pub fn sequence_window(&mut self, x: Var, start: i64, length: usize) -> Result<Var> {
        self.append_to_sequences("sequence_window", SequenceWindow { start, length }, x)
    }
}

impl SequenceWindow {
    /// Calls `visit` with each row of the result, the place in its window, and the row of x that is there, if there is one.
    fn each_place(&self, sequences: impl Iterator<Item = Range<usize>>, mut visit: impl FnMut(usize, Option<usize>)) {
        for rows in sequences {
            for row in rows.clone() {
                for place in 0..self.length {
                    let from = row as i64 + self.start + place as i64;
                    let from = usize::try_from(from).ok().filter(|from| rows.contains(from));
                    visit(row * self.length + place, from);
                }
            }
        }
    }
}

impl Operator for SequenceWindow {
    fn name(&self) -> &'static str {
        "sequence_window"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), &inputs[..1])?;
        expect_sequences(self.name(), inputs)?;
        match inputs[0].shape.0[..] {
            [rows, Dim::Fixed(width)] if self.length > 0 => {
                Ok(vec![Signature::float(Shape(vec![rows, Dim::Fixed(width * self.length)]))])
            }
            _ => {
                let got = format!("{} and windows of {}", inputs[0].shape, self.length);
                expected(self.name(), "sequences [N, D] and windows of at least one row", got)
            }
        }
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (width, x, out) = (inputs.columns(0), inputs.floats(0), outputs.floats(0));
        self.each_place(rows_of_sequences(self.name(), inputs)?, |place, from| {
            let out = &mut out[place * width..][..width];
            match from {
                Some(from) => out.copy_from_slice(&x[from * width..][..width]),
                None => out.fill(0.0),
            }
        });
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (width, dx, dy) = (inputs.columns(0), gradient.accumulate(), inputs.output_gradient(0));
        self.each_place(rows_of_sequences(self.name(), inputs)?, |place, from| {
            if let Some(from) = from {
                kernel::add(&dy[place * width..][..width], &mut dx[from * width..][..width]);
            }
        });
        Ok(())
    }
}
