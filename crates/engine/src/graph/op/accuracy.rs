//! The fraction of rows whose label is among the k classes with the highest scores.
//!
//! Among classes with equal scores the lower index comes first, so a model that gives every class the same score is right only if
//! the label is below k. A NaN score is never among the highest.

use serde::{Deserialize, Serialize};

use super::class_labels::{class, expect_class_labels};
use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// The fraction of rows with the right class among the k highest. Inputs: scores [.., C], labels [.., 1]. Outputs: the fraction,
/// the number of right rows and the number of rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// The number of highest scores that count.
    pub k: usize,
}

/// The outputs of `accuracy` for this batch.
#[derive(Debug, Clone, Copy)]
pub struct AccuracyVars {
    /// The fraction of right rows.
    pub accuracy: Var,
    /// The number of right rows, an integer.
    pub correct: Var,
    /// The number of rows, an integer.
    pub total: Var,
}

impl Net {
    /// The fraction of rows whose label is among the `k` classes with the highest scores.
    pub fn accuracy(&mut self, scores: Var, labels: Var, k: usize) -> Result<AccuracyVars> {
        let outputs = self.append("accuracy", Accuracy { k }, &[scores, labels])?;
        Ok(AccuracyVars { accuracy: outputs[0], correct: outputs[1], total: outputs[2] })
    }
}

impl Operator for Accuracy {
    fn name(&self) -> &'static str {
        "accuracy"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        match inputs[0].shape.0.last() {
            Some(&Dim::Fixed(classes)) if inputs[0].dtype.is_float() && (1..=classes).contains(&self.k) => {}
            _ => return expected(self.name(), format!("float scores of at least k = {} classes", self.k), &inputs[0].shape),
        }
        expect_class_labels(self.name(), &inputs[0], &inputs[1])?;
        let one = Signature::float(Shape::fixed(&[1]));
        let count = Signature { dtype: DType::I64, ..one.clone() };
        Ok(vec![one, count.clone(), count])
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (mut correct, mut total) = (0u64, 0u64);
        for (i, scores) in inputs.floats(0).chunks_exact(inputs.columns(0)).enumerate() {
            let class = class(self.name(), inputs, i)?;
            let score = scores[class];
            let before = scores[..class].iter().filter(|&&s| s >= score).count();
            let after = scores[class + 1..].iter().filter(|&&s| s > score).count();
            correct += u64::from(before + after < self.k && !score.is_nan());
            total += 1;
        }
        outputs.floats(0)[0] = (correct as f64 / total.max(1) as f64) as f32;
        outputs.ints(1)[0] = correct;
        outputs.ints(2)[0] = total;
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
