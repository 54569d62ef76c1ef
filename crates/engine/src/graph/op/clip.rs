//! Limits x to an interval, element by element. This limits values; gradients are clipped by `minimize`.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, unary};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// x limited to an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Clip {
    /// The lower bound.
    pub min: f32,
    /// The upper bound.
    pub max: f32,
}

impl Net {
    /// x limited to an interval. No gradient flows where x is at a bound or beyond it.
    pub fn clip(&mut self, x: Var, min: f32, max: f32) -> Result<Var> {
        self.append_one("clip", Clip { min, max }, &[x])
    }
}

impl Operator for Clip {
    fn name(&self) -> &'static str {
        "clip"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        // Also false if one of them is NaN.
        let ordered = self.min <= self.max;
        if !ordered {
            return expected(self.name(), "min <= max", format!("min {} and max {}", self.min, self.max));
        }
        unary::infer(self.name(), inputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (min, max) = (self.min, self.max);
        // Unlike `max` and `min`, comparisons let NaN through: hiding it would hide why training fails.
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
