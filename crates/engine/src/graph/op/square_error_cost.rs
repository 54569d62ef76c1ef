//! `(x - z)^2`, element by element.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// The squared difference. Inputs: predictions, labels of the same shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SquareErrorCost;

impl Net {
    /// The squared difference of each prediction and its label. A label that is computed by an op gets a gradient too.
    pub fn square_error_cost(&mut self, predictions: Var, labels: Var) -> Result<Var> {
        self.append_one("square_error_cost", SquareErrorCost, &[predictions, labels])
    }
}

impl Operator for SquareErrorCost {
    fn name(&self) -> &'static str {
        "square_error_cost"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        if inputs[0].shape != inputs[1].shape {
            return expected(self.name(), "predictions and labels of one shape", shapes(inputs));
        }
        Ok(vec![Signature::float(inputs[0].shape.clone())])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, z) = (inputs.floats(0), inputs.floats(1));
        for ((out, &x), &z) in outputs.floats(0).iter_mut().zip(x).zip(z) {
            *out = (x - z) * (x - z);
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (x, z, dy) = (inputs.floats(0), inputs.floats(1), inputs.output_gradient(0));
        for (input, sign) in [(0, 2.0), (1, -2.0)] {
            if let Some(gradient) = gradients.of(input) {
                gradient.add(|i| sign * dy[i] * (x[i] - z[i]));
            }
        }
        Ok(())
    }
}
