//! x within two bounds, element by element. This limits values; what limits gradients is part of `minimize`.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// x, or the bound it lies beyond.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Clip {
    /// The least result.
    pub min: f32,
    /// The largest result.
    pub max: f32,
}

impl Net {
    /// x, or the bound it lies beyond. No gradient flows where x is at a bound or beyond it.
    pub fn clip(&mut self, x: Var, min: f32, max: f32) -> Result<Var> {
        self.append_one("clip", Clip { min, max }, &[x])
    }
}

impl Operator for Clip {
    fn name(&self) -> &'static str {
        "clip"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        // Also false if one of them is no number.
        let ordered = self.min <= self.max;
        if !ordered {
            return expected(self.name(), "min <= max", format!("min {} and max {}", self.min, self.max));
        }
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (min, max) = (self.min, self.max);
        // Unlike `max` and `min`, comparisons let NaN through: hiding it would hide why a training fails.
        unary::forward(inputs, outputs, |x| {
            if x < min {
                min
            } else if x > max {
                max
            } else {
                x
            }
        })
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (min, max) = (self.min, self.max);
        unary::backward(inputs, gradients, |x, _| if x > min && x < max { 1.0 } else { 0.0 })
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let (x, min, max) = (node.input(0), node.float(self.min), node.float(self.max));
        node.finish(0, "Clip", &[&x, &min, &max], vec![]);
        Ok(())
    }
}
