//! Binary cross entropy on logits: `max(x, 0) - x z + ln(1 + exp(-|x|))`, which neither overflows nor cancels.

use serde::{Deserialize, Serialize};

use super::class_labels::expect_click_labels;
use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::kernel;
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// Binary cross entropy on logits. Inputs: logits, labels of the same shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SigmoidCrossEntropy;

impl Net {
    /// The loss of each logit against its label in [0, 1].
    pub fn sigmoid_cross_entropy_with_logits(&mut self, logits: Var, labels: Var) -> Result<Var> {
        self.append_one("sigmoid_cross_entropy_with_logits", SigmoidCrossEntropy, &[logits, labels])
    }
}

impl Operator for SigmoidCrossEntropy {
    fn name(&self) -> &'static str {
        "sigmoid_cross_entropy_with_logits"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        if inputs[0].shape != inputs[1].shape {
            return expected(self.name(), "logits and labels of one shape", shapes(inputs));
        }
        Ok(vec![Signature::float(inputs[0].shape.clone())])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        expect_click_labels(self.name(), inputs)?;
        let (x, z) = (inputs.floats(0), inputs.floats(1));
        for ((out, &x), &z) in outputs.floats(0).iter_mut().zip(x).zip(z) {
            *out = kernel::relu(x) - x * z + (-x.abs()).exp().ln_1p();
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        if let Some(gradient) = gradients.of(0) {
            let (x, z, dy) = (inputs.floats(0), inputs.floats(1), inputs.output_gradient(0));
            gradient.add(|i| dy[i] * (1.0 / (1.0 + (-x[i]).exp()) - z[i]));
        }
        Ok(())
    }
}
