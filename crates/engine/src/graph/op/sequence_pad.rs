//! Sequences of different lengths as one tensor, with padding behind the shorter ones.
//!
//! x `[N, ...]` with N rows of W elements, lengths `[B]`, the result `[B, T, ...]`.

use serde::{Deserialize, Serialize};

use super::sequence::{check, elements, expect_sequences, rows_of_sequences, with_leading};
use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::kernel;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// Puts each sequence into a row of its own. Inputs: x, lengths, the padding: one element, or W.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequencePad {
    /// T; as long as the longest sequence of the batch if it is `None`.
    pub length: Option<usize>,
    integers: bool,
}

impl Net {
    /// Puts each sequence that `x` joins into a row of its own: `[B, T, ...]`, and the lengths of the sequences `[B]`. T is
    /// `length`, or the length of the longest sequence of the batch. Behind a sequence each row is `padding`, which has one
    /// element or as many as a row.
    pub fn sequence_pad(&mut self, x: Var, padding: Var, length: Option<usize>) -> Result<(Var, Var)> {
        let lengths = self.lengths_for("sequence_pad", x)?;
        let integers = !self.main.variable(x).dtype.is_float();
        let padded = self.append_one("sequence_pad", SequencePad { length, integers }, &[x, lengths, padding])?;
        Ok((padded, lengths))
    }
}

impl SequencePad {
    fn signature(&self, inputs: &[Signature], longest: Dim) -> Result<Vec<Signature>> {
        expect_sequences(self.name(), inputs)?;
        let (x, padding) = (&inputs[0], &inputs[2]);
        let (width, own) = (Shape::product(&x.shape.0[1..]), Shape::product(&padding.shape.0));
        let fits = own == Dim::Fixed(1) || (own == width && own != Dim::Unknown);
        if padding.dtype != x.dtype || padding.ragged || !fits {
            let wanted = format!("one {:?} as padding, or as many as a row of {}", x.dtype, x.shape);
            return expected(self.name(), wanted, format!("{} of {:?}", padding.shape, padding.dtype));
        }
        let shape = with_leading(&[inputs[1].shape.0[0], longest], &x.shape);
        Ok(vec![Signature { shape, ..x.clone() }])
    }

    fn fill<T: Copy>(&self, inputs: &Inputs<'_>, x: &[T], padding: &[T], out: &mut [T]) -> Result<()> {
        let width = inputs.extent(0, 1..inputs.rank(0)).max(1);
        let steps = out.len() / inputs.ints(1).len().max(1);
        check(self.name(), inputs.ints(1), steps / width)?;
        for (rows, out) in rows_of_sequences(self.name(), inputs)?.zip(out.chunks_exact_mut(steps.max(1))) {
            let (own, rest) = out.split_at_mut(rows.len() * width);
            own.copy_from_slice(&x[elements(rows, width)]);
            match padding {
                [one] => rest.fill(*one),
                row => rest.chunks_exact_mut(width).for_each(|rest| rest.copy_from_slice(row)),
            }
        }
        Ok(())
    }
}

impl Operator for SequencePad {
    fn name(&self) -> &'static str {
        "sequence_pad"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        self.signature(inputs, self.length.map_or(Dim::Unknown, Dim::Fixed))
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        let lengths = values.ints(1);
        check(self.name(), lengths, inputs[0].shape.0[0].size(0))?;
        let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
        self.signature(inputs, Dim::Fixed(self.length.unwrap_or(longest)))
    }

    fn is_sized_by(&self, input: usize) -> bool {
        input == 1
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        if self.integers {
            self.fill(inputs, inputs.ints(0), inputs.ints(2), outputs.ints(0))
        } else {
            self.fill(inputs, inputs.floats(0), inputs.floats(2), outputs.floats(0))
        }
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let width = inputs.extent(0, 1..inputs.rank(0)).max(1);
        let (dx, dy) = (gradient.accumulate(), inputs.output_gradient(0));
        let steps = (dy.len() / inputs.ints(1).len().max(1)).max(1);
        for (rows, dy) in rows_of_sequences(self.name(), inputs)?.zip(dy.chunks_exact(steps)) {
            let dx = &mut dx[elements(rows, width)];
            kernel::add(&dy[..dx.len()], dx);
        }
        Ok(())
    }
}
