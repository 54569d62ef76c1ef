//! The sizes of a tensor's dimensions in this step, as integers: PaddlePaddle's `shape`.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Shape};

/// The sizes of the dimensions of the only input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sizes;

impl Net {
    /// The sizes of x's dimensions in this step, integers of shape `[rank]`.
    pub fn sizes(&mut self, x: Var) -> Result<Var> {
        self.append_one("shape", Sizes, &[x])
    }
}

impl Operator for Sizes {
    fn name(&self) -> &'static str {
        "shape"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        view::expect_tensors(self.name(), inputs)?;
        let shape = Shape::fixed(&[inputs[0].shape.rank()]);
        Ok(vec![Signature { shape, dtype: DType::I64, ragged: false }])
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        for (axis, out) in outputs.ints(0).iter_mut().enumerate() {
            *out = inputs.size(0, axis) as u64;
        }
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
