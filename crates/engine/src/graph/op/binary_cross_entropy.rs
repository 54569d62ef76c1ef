//! Binary cross entropy on probabilities, with clamped logarithms: `-z max(ln p, -100) - (1 - z) max(ln(1 - p), -100)`.
//!
//! A prediction that is certain and wrong costs 100, not infinity. The gradient is `(p - z) / max(p (1 - p), 1e-12)`, as in
//! PaddlePaddle.

use serde::{Deserialize, Serialize};

use super::class_labels::{expect_click_labels, expect_probabilities};
use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// Binary cross entropy on probabilities. Inputs: probabilities, labels of the same shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BinaryCrossEntropy;

impl Net {
    /// The loss of each probability against its label in [0, 1]; reduce it to one number with `mean` or `reduce_sum`.
    pub fn binary_cross_entropy(&mut self, probabilities: Var, labels: Var) -> Result<Var> {
        self.append_one("binary_cross_entropy", BinaryCrossEntropy, &[probabilities, labels])
    }
}

impl Operator for BinaryCrossEntropy {
    fn name(&self) -> &'static str {
        "binary_cross_entropy"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        if inputs[0].shape != inputs[1].shape {
            return expected(self.name(), "probabilities and labels of one shape", shapes(inputs));
        }
        Ok(vec![Signature::float(inputs[0].shape.clone())])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        expect_probabilities(self.name(), inputs, 0.0, 1.0)?;
        expect_click_labels(self.name(), inputs)?;
        let (p, z) = (inputs.floats(0), inputs.floats(1));
        for ((out, &p), &z) in outputs.floats(0).iter_mut().zip(p).zip(z) {
            *out = (z - 1.0) * (-p).ln_1p().max(-100.0) - z * p.ln().max(-100.0);
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        if let Some(gradient) = gradients.of(0) {
            let (p, z, dy) = (inputs.floats(0), inputs.floats(1), inputs.output_gradient(0));
            gradient.add(|i| dy[i] * (p[i] - z[i]) / (p[i] * (1.0 - p[i])).max(1e-12));
        }
        Ok(())
    }
}
