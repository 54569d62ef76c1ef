//! Repeats one row per sequence for each row of the sequence: what belongs to a user, beside each of the user's clicks.
//!
//! x `[B, ...]` with B rows of W elements, lengths `[B]`, the result `[N, ...]`.

use serde::{Deserialize, Serialize};

use super::sequence::{check, elements, expect_sequences, ranges, with_leading};
use super::{Operator, Signature, expected, shapes};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::kernel;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::Dim;

/// Repeats each row of x as often as its sequence has rows. Inputs: x, lengths, and the lengths of x if it joins sequences itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequenceExpand {
    integers: bool,
}

impl Net {
    /// Repeats each row of x, `[B, ...]`, for each row of a sequence that `like` joins; sequences of the same lengths. If x joins
    /// sequences too, each must have one row.
    pub fn sequence_expand(&mut self, x: Var, like: Var) -> Result<Var> {
        let lengths = self.lengths_for("sequence_expand", like)?;
        let integers = !self.main.variable(x).dtype.is_float();
        let inputs: Vec<Var> = [x, lengths].into_iter().chain(self.main.lengths(x)).collect();
        let expanded = self.append_one("sequence_expand", SequenceExpand { integers }, &inputs)?;
        self.main.set_lengths(expanded, lengths);
        Ok(expanded)
    }
}

impl SequenceExpand {
    fn signature(&self, inputs: &[Signature], rows: Dim) -> Result<Vec<Signature>> {
        expect_sequences(self.name(), inputs)?;
        let (x, lengths) = (&inputs[0], &inputs[1]);
        if x.shape.0[0].merge(lengths.shape.0[0]).is_none() {
            return expected(self.name(), "one row for each sequence, [B, ...], and lengths [B]", shapes(inputs));
        }
        Ok(vec![Signature { shape: with_leading(&[rows], &x.shape), ..x.clone() }])
    }
}

fn expand<T: Copy>(lengths: &[u64], width: usize, x: &[T], out: &mut [T]) {
    for (rows, x) in ranges(lengths).zip(x.chunks_exact(width)) {
        out[elements(rows, width)].chunks_exact_mut(width).for_each(|out| out.copy_from_slice(x));
    }
}

impl Operator for SequenceExpand {
    fn name(&self) -> &'static str {
        "sequence_expand"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        self.signature(inputs, Dim::Unknown)
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        let lengths = values.ints(1);
        check(self.name(), lengths, u32::MAX as usize)?;
        let own = if values.count() > 2 { values.ints(2) } else { &[] };
        if let Some(at) = own.iter().position(|&length| length != 1) {
            let got = format!("{} rows in sequence {at}; pool them first", own[at] as i64);
            return expected(self.name(), "one row for each sequence", got);
        }
        self.signature(inputs, Dim::Fixed(lengths.iter().sum::<u64>() as usize))
    }

    fn is_sized_by(&self, input: usize) -> bool {
        input >= 1
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (lengths, width) = (inputs.ints(1), inputs.extent(0, 1..inputs.rank(0)).max(1));
        if self.integers {
            expand(lengths, width, inputs.ints(0), outputs.ints(0));
        } else {
            expand(lengths, width, inputs.floats(0), outputs.floats(0));
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (lengths, width) = (inputs.ints(1), inputs.extent(0, 1..inputs.rank(0)).max(1));
        let (dx, dy) = (gradient.accumulate(), inputs.output_gradient(0));
        for (rows, dx) in ranges(lengths).zip(dx.chunks_exact_mut(width)) {
            dy[elements(rows, width)].chunks_exact(width).for_each(|dy| kernel::add(dy, dx));
        }
        Ok(())
    }
}
