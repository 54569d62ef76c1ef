//! The mean of all elements, as a tensor of one.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats};
use crate::kernel;
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::Shape;

/// The mean of all elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mean;

impl Net {
    /// The mean of all elements: turns a loss per sample into the single number that `minimize` needs.
    pub fn mean(&mut self, x: Var) -> Result<Var> {
        self.append_one("mean", Mean, &[x])
    }
}

impl Operator for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        Ok(vec![Signature::float(Shape::fixed(&[1]))])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let x = inputs.floats(0);
        outputs.floats(0)[0] = (kernel::sum(x) / x.len().max(1) as f64) as f32;
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        if let Some(gradient) = gradients.of(0) {
            let share = inputs.output_gradient(0)[0] / inputs.floats(0).len().max(1) as f32;
            gradient.add(|_| share);
        }
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let x = node.input(0);
        let mean = node.emit("ReduceMean", &[&x], vec![("keepdims", OnnxAttribute::Int(0))]);
        node.finish_reshaped(0, &mean);
        Ok(())
    }
}
