//! Cross entropy of probabilities: `-ln p[label]`, or `-sum_c label_c ln p_c` for soft labels.
//!
//! Probabilities below 1e-20 count as 1e-20: softmax in single precision returns exact zeros, and one such row must not make a
//! model infinite. Prefer `softmax_with_cross_entropy`, which does not have this problem.

use serde::{Deserialize, Serialize};

use super::class_labels::{ClassLabels, expect_probabilities};
use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// Cross entropy of probabilities. Inputs: probabilities [.., C], labels [.., 1] or, soft, [.., C].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CrossEntropy {
    /// How labels are given.
    pub labels: ClassLabels,
}

/// Smaller probabilities count as this.
const LEAST: f32 = 1e-20;

/// How far rounding may raise a probability above 1.
const ROUNDING: f32 = 1e-3;

impl Net {
    /// The loss `[.., 1]` of probabilities `[.., C]` against integer labels `[.., 1]`.
    pub fn cross_entropy(&mut self, probabilities: Var, labels: Var) -> Result<Var> {
        self.cross_entropy_with(probabilities, labels, ClassLabels::default())
    }

    /// The loss of probabilities against integer or soft labels.
    pub fn cross_entropy_with(&mut self, probabilities: Var, labels: Var, kind: ClassLabels) -> Result<Var> {
        self.append_one("cross_entropy", CrossEntropy { labels: kind }, &[probabilities, labels])
    }
}

impl Operator for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        Ok(vec![Signature::float(self.labels.infer(self.name(), &inputs[0], &inputs[1])?)])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        expect_probabilities(self.name(), inputs, -ROUNDING, 1.0 + ROUNDING)?;
        let c = inputs.columns(0);
        for (i, (loss, p)) in outputs.floats(0).iter_mut().zip(inputs.floats(0).chunks_exact(c)).enumerate() {
            *loss = if self.labels.soft {
                let z = &inputs.floats(1)[i * c..][..c];
                p.iter().zip(z).map(|(p, z)| -z * p.max(LEAST).ln()).sum()
            } else {
                match self.labels.class(self.name(), inputs, i)? {
                    Some(class) => -p[class].max(LEAST).ln(),
                    None => 0.0,
                }
            };
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (p, dy, c) = (inputs.floats(0), inputs.output_gradient(0), inputs.columns(0));
        let dp = gradient.accumulate();
        for (i, &dy) in dy.iter().enumerate() {
            let row = i * c..(i + 1) * c;
            if self.labels.soft {
                for ((dp, p), z) in dp[row.clone()].iter_mut().zip(&p[row.clone()]).zip(&inputs.floats(1)[row]) {
                    *dp -= dy * z / p.max(LEAST);
                }
            } else if let Some(class) = self.labels.class(self.name(), inputs, i)? {
                dp[row.start + class] -= dy / p[row.start + class].max(LEAST);
            }
        }
        Ok(())
    }
}
