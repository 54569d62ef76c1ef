//! One-hot rows from integers.

use serde::{Deserialize, Serialize};

use super::class_labels::row_of;
use super::{Operator, Signature, expected};
use crate::error::{Error, Result};
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// Integers [..] as one-hot rows [.., depth].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OneHot {
    /// The length of a row; integers must be below it.
    pub depth: usize,
    /// Whether integers out of range give zeros; otherwise they are an error.
    pub allow_out_of_range: bool,
}

impl Net {
    /// Each integer in `0..depth` as a row of zeros with a 1 at its index: `[..]` -> `[.., depth]`.
    pub fn one_hot(&mut self, x: Var, depth: usize) -> Result<Var> {
        self.append_one("one_hot", OneHot { depth, allow_out_of_range: false }, &[x])
    }

    /// The same, with zeros for any other integer.
    pub fn one_hot_or_zeros(&mut self, x: Var, depth: usize) -> Result<Var> {
        self.append_one("one_hot", OneHot { depth, allow_out_of_range: true }, &[x])
    }
}

impl Operator for OneHot {
    fn name(&self) -> &'static str {
        "one_hot"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        if inputs[0].dtype.is_float() || inputs[0].ragged {
            let got = if inputs[0].ragged { "a slot of variable length" } else { "floats; `cast` them first" };
            return expected(self.name(), "integers of a fixed shape", got);
        }
        if self.depth == 0 {
            return expected(self.name(), "a depth of at least 1", self.depth);
        }
        let mut dims = inputs[0].shape.0.clone();
        dims.push(Dim::Fixed(self.depth));
        Ok(vec![Signature::float(Shape(dims))])
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (ids, out) = (inputs.ints(0), outputs.floats(0));
        out.fill(0.0);
        for (i, (&id, row)) in ids.iter().zip(out.chunks_exact_mut(self.depth)).enumerate() {
            if id < self.depth as u64 {
                row[id as usize] = 1.0;
            } else if !self.allow_out_of_range {
                return Err(Error::Value {
                    op: self.name(),
                    what: "an integer".into(),
                    expected: format!("in 0..{}", self.depth),
                    got: (id as i64).to_string(),
                    row: row_of(inputs, i, ids.len()),
                });
            }
        }
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
