//! The elements along the last axis in order, and the positions they came from.
//!
//! Among equal elements the one with the lower position comes first; NaN comes last.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::DType;

/// The elements in order. Input: x [.., N]. Outputs: values and positions, [.., N].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sort {
    /// Whether the greatest element comes first.
    pub descending: bool,
}

impl Net {
    /// The elements along the last axis in order, and their positions there as integers.
    pub fn sort(&mut self, x: Var, descending: bool) -> Result<(Var, Var)> {
        let outputs = self.append("argsort", Sort { descending }, &[x])?;
        Ok((outputs[0], outputs[1]))
    }
}

impl Operator for Sort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        view::expect_tensors(self.name(), inputs)?;
        let shape = inputs[0].shape.clone();
        Ok(vec![Signature::float(shape.clone()), Signature { shape, dtype: DType::I64, ragged: false }])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, n) = (inputs.floats(0), inputs.columns(0).max(1));
        let [values, positions] = outputs.all() else { unreachable!("two outputs were inferred") };
        let rows = values.floats.chunks_exact_mut(n).zip(positions.ints.chunks_exact_mut(n));
        for (row, (values, positions)) in x.chunks_exact(n).zip(rows) {
            (0..).zip(&mut *positions).for_each(|(at, position)| *position = at);
            positions.sort_unstable_by(|&a, &b| {
                let (x, y) = (row[a as usize], row[b as usize]);
                let by_value = match (x.is_nan() || y.is_nan(), self.descending) {
                    (true, _) => x.is_nan().cmp(&y.is_nan()),
                    (false, true) => y.total_cmp(&x),
                    (false, false) => x.total_cmp(&y),
                };
                // -0 and 0 are equal.
                if x == y { a.cmp(&b) } else { by_value.then(a.cmp(&b)) }
            });
            values.iter_mut().zip(&*positions).for_each(|(value, &at)| *value = row[at as usize]);
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let n = inputs.columns(0).max(1);
        let (positions, dy) = (inputs.output_ints(1), inputs.output_gradient(0));
        let dx = gradient.accumulate().chunks_exact_mut(n);
        for ((dx, positions), dy) in dx.zip(positions.chunks_exact(n)).zip(dy.chunks_exact(n)) {
            positions.iter().zip(dy).for_each(|(&at, dy)| dx[at as usize] += dy);
        }
        Ok(())
    }
}
