//! One matrix product per row of the batch: `matmul` for exactly three dimensions, without broadcasting.

use serde::{Deserialize, Serialize};

use super::matmul::Product;
use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::Shape;

/// x [B, M, K] times y [B, K, N] gives [B, M, N].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bmm;

impl Net {
    /// x [B, M, K] times y [B, K, N] gives [B, M, N]: one product per row of the batch.
    pub fn bmm(&mut self, x: Var, y: Var) -> Result<Var> {
        self.append_one("bmm", Bmm, &[x, y])
    }
}

impl Operator for Bmm {
    fn name(&self) -> &'static str {
        "bmm"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        match (&inputs[0].shape.0[..], &inputs[1].shape.0[..]) {
            (&[x_batch, m, x_k], &[y_batch, y_k, n]) if x_batch == y_batch && x_k == y_k => {
                Ok(vec![Signature::float(Shape(vec![x_batch, m, n]))])
            }
            _ => expected(self.name(), "x [B, M, K] and y [B, K, N]", shapes(inputs)),
        }
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        Product::of(inputs, false, false).forward(inputs, outputs);
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        Product::of(inputs, false, false).backward(inputs, gradients, inputs.output_gradient(0));
        Ok(())
    }
}
