//! The inverse of `sequence_pad`: joins the sequences of a padded tensor and drops the padding.
//!
//! x `[B, T, ...]` with rows of W elements, lengths `[B]`, the result `[N, ...]`.

use serde::{Deserialize, Serialize};

use super::sequence::{check, elements, expect_sequences, ranges};
use super::{Operator, Signature, expected, shapes};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::kernel;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// Joins the first rows of each row. Inputs: x, lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequenceUnpad {
    integers: bool,
}

impl Net {
    /// Joins sequences: of row b of x, `[B, T, ...]`, the first `lengths[b]` steps.
    pub fn sequence_unpad(&mut self, x: Var, lengths: Var) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        let joined = self.append_one("sequence_unpad", SequenceUnpad { integers }, &[x, lengths])?;
        self.main.set_lengths(joined, lengths);
        Ok(joined)
    }
}

impl SequenceUnpad {
    fn signature(&self, inputs: &[Signature], rows: Dim) -> Result<Vec<Signature>> {
        expect_sequences(self.name(), inputs)?;
        let (x, lengths) = (&inputs[0], &inputs[1]);
        if x.shape.rank() < 2 || x.shape.0[0].merge(lengths.shape.0[0]).is_none() {
            return expected(self.name(), "padded sequences [B, T, ...] and lengths [B]", shapes(inputs));
        }
        let mut dims = x.shape.0[1..].to_vec();
        dims[0] = rows;
        Ok(vec![Signature { shape: Shape(dims), ..x.clone() }])
    }
}

/// The elements of each sequence in x and in the result.
fn parts<'a>(inputs: &Inputs<'a>) -> impl Iterator<Item = (std::ops::Range<usize>, std::ops::Range<usize>)> + use<'a> {
    let (steps, width) = (inputs.size(0, 1), inputs.extent(0, 2..inputs.rank(0)));
    ranges(inputs.ints(1)).enumerate().map(move |(row, joined)| {
        let padded = row * steps..row * steps + joined.len();
        (elements(padded, width), elements(joined, width))
    })
}

impl Operator for SequenceUnpad {
    fn name(&self) -> &'static str {
        "sequence_unpad"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        self.signature(inputs, Dim::Unknown)
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        let lengths = values.ints(1);
        check(self.name(), lengths, inputs[0].shape.0.get(1).map_or(0, |steps| steps.size(0)))?;
        self.signature(inputs, Dim::Fixed(lengths.iter().sum::<u64>() as usize))
    }

    fn is_sized_by(&self, input: usize) -> bool {
        input == 1
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        if self.integers {
            let (x, out) = (inputs.ints(0), outputs.ints(0));
            parts(inputs).for_each(|(padded, joined)| out[joined].copy_from_slice(&x[padded]));
        } else {
            let (x, out) = (inputs.floats(0), outputs.floats(0));
            parts(inputs).for_each(|(padded, joined)| out[joined].copy_from_slice(&x[padded]));
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (dx, dy) = (gradient.accumulate(), inputs.output_gradient(0));
        parts(inputs).for_each(|(padded, joined)| kernel::add(&dy[joined], &mut dx[padded]));
        Ok(())
    }
}
