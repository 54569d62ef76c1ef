//! A softmax over the rows of each sequence, element by element: weights of attention.
//!
//! x `[N, ...]` with N rows of W elements, lengths `[B]`.

use serde::{Deserialize, Serialize};

use super::sequence::{elements, expect_sequences, rows_of_sequences};
use super::{Operator, Signature, expect_floats};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// exp(x) / sum exp(x) over the rows of each sequence. Inputs: x, lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequenceSoftmax;

impl Net {
    /// exp(x) / sum exp(x) over the rows of each sequence that `x` joins.
    pub fn sequence_softmax(&mut self, x: Var) -> Result<Var> {
        self.append_to_sequences("sequence_softmax", SequenceSoftmax, x)
    }
}

impl Operator for SequenceSoftmax {
    fn name(&self) -> &'static str {
        "sequence_softmax"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), &inputs[..1])?;
        expect_sequences(self.name(), inputs)?;
        Ok(vec![inputs[0].clone()])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let width = inputs.extent(0, 1..inputs.rank(0)).max(1);
        let (x, out) = (inputs.floats(0), outputs.floats(0));
        for rows in rows_of_sequences(self.name(), inputs)? {
            let range = elements(rows, width);
            let (x, out) = (&x[range.clone()], &mut out[range]);
            for column in 0..width.min(x.len()) {
                let x = x[column..].iter().step_by(width);
                let most = x.clone().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
                let mut sum = 0.0;
                for (out, x) in out[column..].iter_mut().step_by(width).zip(x) {
                    *out = (x - most).exp();
                    sum += *out;
                }
                out[column..].iter_mut().step_by(width).for_each(|out| *out /= sum);
            }
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let width = inputs.extent(0, 1..inputs.rank(0)).max(1);
        let (y, dy, dx) = (inputs.output(0), inputs.output_gradient(0), gradient.accumulate());
        for rows in rows_of_sequences(self.name(), inputs)? {
            let range = elements(rows, width);
            let (y, dy, dx) = (&y[range.clone()], &dy[range.clone()], &mut dx[range]);
            for column in 0..width.min(y.len()) {
                let places = (column..y.len()).step_by(width);
                let sum: f32 = places.clone().map(|at| y[at] * dy[at]).sum();
                places.for_each(|at| dx[at] += y[at] * (dy[at] - sum));
            }
        }
        Ok(())
    }
}
