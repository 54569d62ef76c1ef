//! Area under the curve over all batches and over the last few, with PaddlePaddle's counters.
//!
//! The counters are in the scope; all training threads share them, and they are saved with the model. Reset them to zero before
//! an evaluation. The arithmetic is in `core::metrics`.

use openfleet_core::metrics::{Auc as Metric, count_batch, operator_auc};
use serde::{Deserialize, Serialize};

use super::class_labels::bad_label;
use super::{Initialize, Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Elements, Shape, Tensor};

/// Area under the curve. Inputs: predictions (the last column is the probability of the positive class), labels, and the
/// counters batch_stat_pos, batch_stat_neg, stat_pos, stat_neg. Outputs: of all batches, of the window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Auc {
    float_labels: bool,
    /// Batches in the window; 0 means all.
    slide_steps: usize,
}

/// The outputs of `auc`.
#[derive(Debug, Clone, Copy)]
pub struct AucVars {
    /// Over all batches.
    pub auc: Var,
    /// Over the window.
    pub batch_auc: Var,
    /// batch_stat_pos, batch_stat_neg, stat_pos, stat_neg.
    pub counters: [Var; 4],
}

impl Net {
    /// The area under the curve of probabilities against labels, with 4,096 buckets and a window of one batch.
    pub fn auc(&mut self, predictions: Var, labels: Var) -> Result<AucVars> {
        self.auc_with(predictions, labels, Metric::NUM_THRESHOLDS, 1)
    }

    /// The area under the curve with all options.
    pub fn auc_with(
        &mut self,
        predictions: Var,
        labels: Var,
        num_thresholds: usize,
        slide_steps: usize,
    ) -> Result<AucVars> {
        let buckets = num_thresholds.max(1) + 1;
        let mut counters = [labels; 4];
        for (i, counter) in counters.iter_mut().enumerate() {
            // PaddlePaddle's name for them, by which its users reset them.
            let name = self.unique_name("_generated_var");
            let dims = if i < 2 { vec![slide_steps.max(1), buckets] } else { vec![1, buckets] };
            *counter = self.state(&name, &dims, DType::I64, Initialize::Zeros)?;
        }
        let float_labels = self.main.variable(labels).dtype.is_float();
        let inputs = [predictions, labels, counters[0], counters[1], counters[2], counters[3]];
        let outputs = self.append("auc", Auc { float_labels, slide_steps }, &inputs)?;
        Ok(AucVars { auc: outputs[0], batch_auc: outputs[1], counters })
    }
}

impl Auc {
    /// Fails if a label is neither 0 nor 1: it would be counted as one of them.
    fn expect_clicks(&self, inputs: &Inputs<'_>) -> Result<()> {
        let bad = |at, count, got: &dyn ToString| Err(bad_label(self.name(), inputs, at, count, "0 or 1", got.to_string()));
        if self.float_labels {
            let labels = inputs.floats(1);
            let at = labels.iter().position(|&label| label != 0.0 && label != 1.0);
            return at.map_or(Ok(()), |at| bad(at, labels.len(), &labels[at]));
        }
        let labels = inputs.ints(1);
        let at = labels.iter().position(|&label| label > 1);
        at.map_or(Ok(()), |at| bad(at, labels.len(), &(labels[at] as i64)))
    }
}

impl Operator for Auc {
    fn name(&self) -> &'static str {
        "auc"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        if !inputs[0].dtype.is_float() || inputs[1].ragged {
            return expected(self.name(), "float predictions and one label per row", &inputs[0].shape);
        }
        Ok(vec![Signature::float(Shape::fixed(&[1])); 2])
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn changes_state(&self, input: usize) -> bool {
        input >= 2
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let mut counters = [2, 3, 4, 5].map(|input| inputs.state(input).lock());
        let [window_positive, window_negative, positive, negative] = counters.each_mut().map(|tensor| counts(tensor));
        let buckets = positive.len();
        // The newest batch is last; the oldest is dropped at the front.
        for window in [&mut *window_positive, &mut *window_negative] {
            if window.len() > buckets {
                window.copy_within(buckets.., 0);
            }
        }
        let newest = window_positive.len() - buckets;
        let (batch_positive, batch_negative) = (&mut window_positive[newest..], &mut window_negative[newest..]);
        batch_positive.fill(0);
        batch_negative.fill(0);
        let (predictions, width) = (inputs.floats(0), inputs.columns(0));
        self.expect_clicks(inputs)?;
        if self.float_labels {
            count_batch(inputs.floats(1), predictions, width, batch_positive, batch_negative)?;
        } else {
            count_batch(inputs.ints(1), predictions, width, batch_positive, batch_negative)?;
        }
        positive.iter_mut().zip(&*batch_positive).for_each(|(sum, count)| *sum += count);
        negative.iter_mut().zip(&*batch_negative).for_each(|(sum, count)| *sum += count);
        outputs.floats(0)[0] = operator_auc(positive, negative) as f32;
        outputs.floats(1)[0] = match self.slide_steps {
            0 => operator_auc(positive, negative) as f32,
            1 => operator_auc(batch_positive, batch_negative) as f32,
            _ => operator_auc(&add_up(window_positive, buckets), &add_up(window_negative, buckets)) as f32,
        };
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}

fn counts<'a>(tensor: &'a mut parking_lot::MutexGuard<'_, Tensor>) -> &'a mut [i64] {
    match tensor.elements_mut() {
        Elements::I64(counts) => counts,
        Elements::F32(_) => panic!("AUC counters are integers"),
    }
}

fn add_up(window: &[i64], buckets: usize) -> Vec<i64> {
    let mut sums = vec![0; buckets];
    for batch in window.chunks_exact(buckets) {
        sums.iter_mut().zip(batch).for_each(|(sum, count)| *sum += count);
    }
    sums
}
