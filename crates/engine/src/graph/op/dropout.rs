//! Dropout: in training, every element becomes 0 with probability p.
//!
//! ```text
//!                      training              evaluation
//! downgrade_in_infer   x * mask              x * (1 - p)
//! upscale_in_train     x * mask / (1 - p)    x
//! ```
//!
//! Which elements are dropped is a function of the op's seed in this step and the element's position, so a repeated run drops the
//! same ones.

use openfleet_core::key::mix;
use serde::{Deserialize, Serialize};

use super::{Operator, Signature, unary};
use crate::kernel;
use crate::error::{Error, Result};
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// Whether training or evaluation scales, so that the expectation stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum DropoutMode {
    /// Evaluation multiplies by 1 - p: PaddlePaddle's default.
    #[default]
    DowngradeInInfer,
    /// Training divides by 1 - p.
    UpscaleInTrain,
}

/// Dropout. Outputs: the result, and the factor of each element.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// p.
    pub probability: f32,
    /// Whether training or evaluation scales.
    pub mode: DropoutMode,
    /// Drops the same elements in every step, for tests; `None` draws new ones in every step.
    pub seed: Option<u64>,
}

impl Net {
    /// Sets elements to 0 with a probability in training; evaluation multiplies by 1 minus the probability.
    pub fn dropout(&mut self, x: Var, probability: f32) -> Result<Var> {
        self.dropout_with(x, Dropout { probability, mode: DropoutMode::default(), seed: None })
    }

    /// Dropout with all options.
    pub fn dropout_with(&mut self, x: Var, dropout: Dropout) -> Result<Var> {
        if !(0.0..=1.0).contains(&dropout.probability) {
            let got = dropout.probability.to_string();
            return Err(Error::Option { option: "dropout_prob", expected: "in [0, 1]", got });
        }
        let outputs = self.append("dropout", dropout, &[x])?;
        self.stop_gradient(outputs[1]);
        Ok(outputs[0])
    }
}

impl Operator for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let mut outputs = unary::infer(self.name(), inputs)?;
        outputs.push(outputs[0].clone());
        Ok(outputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (y, mask) = outputs.two_floats(0, 1);
        let left = 1.0 - self.probability;
        if inputs.training() {
            let kept = match self.mode {
                DropoutMode::UpscaleInTrain if left > 0.0 => 1.0 / left,
                _ => 1.0,
            };
            let dropped = (f64::from(self.probability) * 4_294_967_296.0) as u64;
            kernel::random_mask(mix(self.seed.unwrap_or(inputs.seed())), dropped, kept, mask);
        } else {
            mask.fill(if self.mode == DropoutMode::UpscaleInTrain { 1.0 } else { left });
        }
        kernel::product(inputs.floats(0), mask, y);
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (mask, dy) = (inputs.output(1), inputs.output_gradient(0));
        let (dx, keep) = gradient.begin();
        for ((dx, &dy), &mask) in dx.iter_mut().zip(dy).zip(mask) {
            kernel::put(dx, dy * mask, keep);
        }
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let (x, kept) = (node.input(0), node.float(1.0 - self.probability));
        match self.mode {
            DropoutMode::DowngradeInInfer => node.finish(0, "Mul", &[&x, &kept], vec![]),
            DropoutMode::UpscaleInTrain => node.finish(0, "Identity", &[&x], vec![]),
        }
        Ok(())
    }
}
