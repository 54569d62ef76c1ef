//! Random floats, new ones in every step: PaddlePaddle's `rand`, `uniform` and `normal`.
//!
//! The numbers are a function of the op's seed in this step, so a repeated run draws the same ones. First values of parameters
//! are drawn once, by `initialize`, and not here.

use openfleet_table::Initializer;
use serde::{Deserialize, Serialize};

use super::size_inputs::{Size, SizeInputs};
use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::Shape;

/// Random floats, new ones in every step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Random {
    /// The shape.
    pub shape: Shape,
    /// The distribution: uniform, normal or truncated normal.
    pub from: Initializer,
    /// Draws the same numbers in every step, for tests; `None` draws new ones in every step.
    pub seed: Option<u64>,
    /// Which sizes are the values of inputs.
    #[serde(default, skip_serializing_if = "SizeInputs::is_empty")]
    sizes: SizeInputs,
}

impl Net {
    /// Random floats, new ones in every step; -1 in `dims` is the batch. No gradient flows into them.
    pub fn random(&mut self, dims: &[i64], from: Initializer, seed: Option<u64>) -> Result<Var> {
        self.random_of_sizes(&dims.iter().map(|&size| Size::Known(size)).collect::<Vec<_>>(), from, seed)
    }

    /// The same with sizes of which some are the values of variables.
    pub fn random_of_sizes(&mut self, dims: &[Size], from: Initializer, seed: Option<u64>) -> Result<Var> {
        let (list, sizes, inputs) = SizeInputs::split_sizes(dims);
        self.append_one("random", Random { shape: sizes.shape(&list), from, seed, sizes }, &inputs)
    }
}

impl Operator for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn infer(&self, _: &[Signature]) -> Result<Vec<Signature>> {
        match self.from {
            Initializer::Uniform { .. } | Initializer::Normal { .. } | Initializer::TruncatedNormal { .. } => {
                Ok(vec![Signature::float(self.shape.clone())])
            }
            _ => expected(self.name(), "a distribution: uniform, normal or truncated normal", format!("{:?}", self.from)),
        }
    }

    fn infer_at_run(&self, _: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        Ok(vec![Signature::float(self.sizes.shape_at_run(self.name(), &self.shape, values)?)])
    }

    fn is_sized_by(&self, _: usize) -> bool {
        true
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let out = outputs.floats(0);
        // These distributions ignore the dimensions.
        self.from.fill(self.seed.unwrap_or(inputs.seed()), &[out.len()], out);
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
