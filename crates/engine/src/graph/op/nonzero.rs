//! Where a tensor is not 0: PaddlePaddle's `nonzero`, and `where` of a condition alone.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// The indices of the elements that are not 0. Input: x of any rank K. The result is `[M, K]`, with M known when the program runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nonzero {
    integers: bool,
}

impl Net {
    /// The indices of the elements of x that are not 0, in order, one row each.
    pub fn nonzero(&mut self, x: Var) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("nonzero", Nonzero { integers }, &[x])
    }
}

impl Nonzero {
    fn signature(&self, inputs: &[Signature], count: Dim) -> Result<Vec<Signature>> {
        view::expect_tensors(self.name(), inputs)?;
        if inputs[0].shape.rank() == 0 {
            return expected(self.name(), "at least one dimension", &inputs[0].shape);
        }
        let shape = Shape(vec![count, Dim::Fixed(inputs[0].shape.rank())]);
        Ok(vec![Signature { shape, dtype: DType::I64, ragged: false }])
    }

    /// The places of the elements that are not 0.
    fn places<'a>(&self, inputs: &Inputs<'a>) -> Box<dyn Iterator<Item = usize> + 'a> {
        match self.integers {
            true => Box::new(inputs.ints(0).iter().enumerate().filter(|&(_, &x)| x != 0).map(|(i, _)| i)),
            false => Box::new(inputs.floats(0).iter().enumerate().filter(|&(_, &x)| x != 0.0).map(|(i, _)| i)),
        }
    }
}

impl Operator for Nonzero {
    fn name(&self) -> &'static str {
        "nonzero"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        self.signature(inputs, Dim::Unknown)
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        self.signature(inputs, Dim::Fixed(self.places(values).count()))
    }

    fn is_sized_by(&self, _: usize) -> bool {
        true
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let rank = inputs.rank(0);
        for (mut place, indices) in self.places(inputs).zip(outputs.ints(0).chunks_exact_mut(rank)) {
            for axis in (0..rank).rev() {
                let size = inputs.size(0, axis);
                indices[axis] = (place % size) as u64;
                place /= size;
            }
        }
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
