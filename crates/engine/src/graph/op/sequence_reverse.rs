//! The rows of each sequence in reverse order.

use serde::{Deserialize, Serialize};

use super::sequence::{elements, expect_sequences, rows_of_sequences};
use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::kernel;
use crate::memory::{Gradients, Inputs, Outputs};

/// The rows of each sequence in reverse order. Inputs: x, lengths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequenceReverse {
    integers: bool,
}

impl Net {
    /// The rows of each sequence that `x` joins, in reverse order.
    pub fn sequence_reverse(&mut self, x: Var) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_to_sequences("sequence_reverse", SequenceReverse { integers }, x)
    }
}

/// Calls `visit` with each row of x and the row of the result that it becomes.
fn each_row(op: &'static str, inputs: &Inputs<'_>, mut visit: impl FnMut(usize, usize)) -> Result<()> {
    for rows in rows_of_sequences(op, inputs)? {
        let last = rows.end;
        rows.clone().for_each(|row| visit(row, last - 1 - (row - rows.start)));
    }
    Ok(())
}

impl Operator for SequenceReverse {
    fn name(&self) -> &'static str {
        "sequence_reverse"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_sequences(self.name(), inputs)?;
        Ok(vec![inputs[0].clone()])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let width = inputs.extent(0, 1..inputs.rank(0));
        let row = |row: usize| elements(row..row + 1, width);
        if self.integers {
            let (x, out) = (inputs.ints(0), outputs.ints(0));
            each_row(self.name(), inputs, |from, to| out[row(to)].copy_from_slice(&x[row(from)]))
        } else {
            let (x, out) = (inputs.floats(0), outputs.floats(0));
            each_row(self.name(), inputs, |from, to| out[row(to)].copy_from_slice(&x[row(from)]))
        }
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let width = inputs.extent(0, 1..inputs.rank(0));
        let row = |row: usize| elements(row..row + 1, width);
        let (dx, dy) = (gradient.accumulate(), inputs.output_gradient(0));
        each_row(self.name(), inputs, |from, to| kernel::add(&dy[row(to)], &mut dx[row(from)]))
    }
}
