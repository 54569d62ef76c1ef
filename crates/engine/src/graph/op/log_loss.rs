//! Binary cross entropy on probabilities: `-z ln(p + e) - (1 - z) ln(1 - p + e)`, where e keeps the logarithm finite.

use serde::{Deserialize, Serialize};

use super::class_labels::{expect_click_labels, expect_probabilities};
use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// Binary cross entropy on probabilities. Inputs: probabilities, labels of the same shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogLoss {
    /// e, added to the arguments of the logarithms.
    pub epsilon: f32,
}

impl Net {
    /// The loss of each probability against its label in [0, 1], with e = 0.0001.
    pub fn log_loss(&mut self, probabilities: Var, labels: Var) -> Result<Var> {
        self.log_loss_with(probabilities, labels, 1e-4)
    }

    /// The loss of each probability against its label in [0, 1].
    pub fn log_loss_with(&mut self, probabilities: Var, labels: Var, epsilon: f32) -> Result<Var> {
        self.append_one("log_loss", LogLoss { epsilon }, &[probabilities, labels])
    }
}

impl Operator for LogLoss {
    fn name(&self) -> &'static str {
        "log_loss"
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
        let e = self.epsilon;
        // Accept everything for which the formula is defined: rounding errors must not stop training.
        expect_probabilities(self.name(), inputs, -e, 1.0 + e)?;
        expect_click_labels(self.name(), inputs)?;
        let (p, z) = (inputs.floats(0), inputs.floats(1));
        for ((out, &p), &z) in outputs.floats(0).iter_mut().zip(p).zip(z) {
            *out = -z * (p + e).ln() - (1.0 - z) * (1.0 - p + e).ln();
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        if let Some(gradient) = gradients.of(0) {
            let (p, z, dy, e) = (inputs.floats(0), inputs.floats(1), inputs.output_gradient(0), self.epsilon);
            gradient.add(|i| dy[i] * ((1.0 - z[i]) / (1.0 - p[i] + e) - z[i] / (p[i] + e)));
        }
        Ok(())
    }
}
