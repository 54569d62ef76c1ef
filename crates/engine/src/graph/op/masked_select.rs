//! The elements of a tensor where a mask is true, in order.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, shapes, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// The elements of x where the mask is true. Inputs of one shape: x, mask. The result has one dimension, whose size is known only
/// when the program runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MaskedSelect {
    integers: bool,
}

impl Net {
    /// The elements of x where `mask` is true, in order, with one dimension.
    pub fn masked_select(&mut self, x: Var, mask: Var) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("masked_select", MaskedSelect { integers }, &[x, mask])
    }
}

impl MaskedSelect {
    fn signature(&self, inputs: &[Signature], selected: Dim) -> Result<Vec<Signature>> {
        view::expect_tensors(self.name(), inputs)?;
        let (x, mask) = (&inputs[0], &inputs[1]);
        if mask.dtype != DType::Bool || mask.shape != x.shape {
            let got = format!("{}, the mask of {:?}", shapes(inputs), mask.dtype);
            return expected(self.name(), "x and a mask of booleans of the same shape", got);
        }
        Ok(vec![Signature { shape: Shape(vec![selected]), ..x.clone() }])
    }
}

fn selected<'a>(inputs: &Inputs<'a>) -> impl Iterator<Item = usize> + use<'a> {
    inputs.floats(1).iter().enumerate().filter(|&(_, &chosen)| chosen != 0.0).map(|(i, _)| i)
}

impl Operator for MaskedSelect {
    fn name(&self) -> &'static str {
        "masked_select"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        self.signature(inputs, Dim::Unknown)
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        self.signature(inputs, Dim::Fixed(selected(values).count()))
    }

    fn is_sized_by(&self, input: usize) -> bool {
        input == 1
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        if self.integers {
            let x = inputs.ints(0);
            outputs.ints(0).iter_mut().zip(selected(inputs)).for_each(|(out, i)| *out = x[i]);
        } else {
            let x = inputs.floats(0);
            outputs.floats(0).iter_mut().zip(selected(inputs)).for_each(|(out, i)| *out = x[i]);
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        if let Some(gradient) = gradients.of(0) {
            let values = gradient.accumulate();
            inputs.output_gradient(0).iter().zip(selected(inputs)).for_each(|(g, i)| values[i] += g);
        }
        Ok(())
    }
}
