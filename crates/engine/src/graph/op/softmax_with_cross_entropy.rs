//! Softmax and cross entropy in one op: `ln(sum_c exp x_c) - x[label]`, which neither overflows nor takes the logarithm of a
//! small number.

use serde::{Deserialize, Serialize};

use super::class_labels::ClassLabels;
use super::softmax::softmax;
use super::{Operator, Signature};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};

/// Cross entropy on logits. Inputs: logits [.., C], labels [.., 1] or, soft, [.., C]. Outputs: the loss [.., 1] and the
/// softmax of the logits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxWithCrossEntropy {
    /// How labels are given.
    pub labels: ClassLabels,
}

impl Net {
    /// The loss `[.., 1]` of logits `[.., C]` against integer labels `[.., 1]`.
    pub fn softmax_with_cross_entropy(&mut self, logits: Var, labels: Var) -> Result<Var> {
        Ok(self.softmax_with_cross_entropy_of(logits, labels, ClassLabels::default())?.0)
    }

    /// The loss of logits against integer or soft labels, and the softmax of the logits. As in PaddlePaddle, no gradient flows
    /// through that softmax: to train on it, use `softmax`.
    pub fn softmax_with_cross_entropy_of(
        &mut self,
        logits: Var,
        labels: Var,
        kind: ClassLabels,
    ) -> Result<(Var, Var)> {
        let op = SoftmaxWithCrossEntropy { labels: kind };
        let outputs = self.append("softmax_with_cross_entropy", op, &[logits, labels])?;
        self.stop_gradient(outputs[1]);
        Ok((outputs[0], outputs[1]))
    }
}

impl Operator for SoftmaxWithCrossEntropy {
    fn name(&self) -> &'static str {
        "softmax_with_cross_entropy"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let loss = self.labels.infer(self.name(), &inputs[0], &inputs[1])?;
        Ok(vec![Signature::float(loss), Signature::float(inputs[0].shape.clone())])
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, c) = (inputs.floats(0), inputs.columns(0));
        let (loss, y) = outputs.two_floats(0, 1);
        for (i, (x, y)) in x.chunks_exact(c).zip(y.chunks_exact_mut(c)).enumerate() {
            let (greatest, logarithm) = softmax(x, y, 1);
            loss[i] = if self.labels.soft {
                let z = &inputs.floats(1)[i * c..][..c];
                x.iter().zip(z).map(|(x, z)| z * (greatest - x + logarithm)).sum()
            } else {
                match self.labels.class(self.name(), inputs, i)? {
                    Some(class) => greatest - x[class] + logarithm,
                    None => 0.0,
                }
            };
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (y, dy, c) = (inputs.output(1), inputs.output_gradient(0), inputs.columns(0));
        let dx = gradient.accumulate();
        for (i, (dx, y)) in dx.chunks_exact_mut(c).zip(y.chunks_exact(c)).enumerate() {
            if self.labels.soft {
                let z = &inputs.floats(1)[i * c..][..c];
                let total: f32 = z.iter().sum();
                for ((dx, y), z) in dx.iter_mut().zip(y).zip(z) {
                    *dx += dy[i] * (y * total - z);
                }
            } else if let Some(class) = self.labels.class(self.name(), inputs, i)? {
                dx.iter_mut().zip(y).for_each(|(dx, y)| *dx += dy[i] * y);
                dx[class] -= dy[i];
            }
        }
        Ok(())
    }
}
