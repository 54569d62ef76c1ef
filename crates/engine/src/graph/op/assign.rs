//! A copy.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};

/// A copy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assign {
    /// Whether the elements are floats.
    float: bool,
}

impl Net {
    /// A copy: another name for a value, or a point where `stop_gradient` cuts one of several paths.
    pub fn assign(&mut self, x: Var) -> Result<Var> {
        let float = self.main.variable(x).dtype.is_float();
        self.append_one("assign", Assign { float }, &[x])
    }
}

impl Operator for Assign {
    fn name(&self) -> &'static str {
        "assign"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        if inputs[0].ragged {
            return expected(self.name(), "a fixed number of elements per row", "a slot of variable length");
        }
        Ok(vec![inputs[0].clone()])
    }

    fn has_gradient(&self, _: usize) -> bool {
        self.float
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        match self.float {
            true => outputs.floats(0).copy_from_slice(inputs.floats(0)),
            false => outputs.ints(0).copy_from_slice(inputs.ints(0)),
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        if let Some(gradient) = gradients.of(0) {
            let dy = inputs.output_gradient(0);
            gradient.add(|i| dy[i]);
        }
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        node.single_node("Identity", vec![]);
        Ok(())
    }
}
