//! Integers to floats and back: labels are integers, losses need floats.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::DType;

/// Converts elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cast {
    from: DType,
    to: DType,
}

impl Net {
    /// Converts elements. Floats are truncated to integers; booleans become 0 and 1.
    pub fn cast(&mut self, x: Var, to: DType) -> Result<Var> {
        let from = self.main.variable(x).dtype;
        self.append_one("cast", Cast { from, to }, &[x])
    }
}

impl Operator for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        if inputs[0].ragged {
            return expected(self.name(), "a fixed number of elements per row", "a slot of variable length");
        }
        Ok(vec![Signature { dtype: self.to, ..inputs[0].clone() }])
    }

    fn has_gradient(&self, _: usize) -> bool {
        self.from == DType::F32 && self.to == DType::F32
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        match (self.from.is_float(), self.to) {
            (true, DType::I64) => {
                for (y, &x) in outputs.ints(0).iter_mut().zip(inputs.floats(0)) {
                    *y = (x as i64) as u64;
                }
            }
            (false, DType::I64) => outputs.ints(0).copy_from_slice(inputs.ints(0)),
            (true, DType::F32) => outputs.floats(0).copy_from_slice(inputs.floats(0)),
            (true, DType::Bool) => {
                for (y, &x) in outputs.floats(0).iter_mut().zip(inputs.floats(0)) {
                    *y = if x != 0.0 { 1.0 } else { 0.0 };
                }
            }
            (false, to) => {
                for (y, &x) in outputs.floats(0).iter_mut().zip(inputs.ints(0)) {
                    let value = x as i64 as f32;
                    *y = if to == DType::Bool { f32::from(value != 0.0) } else { value };
                }
            }
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
        let kind = match self.to {
            DType::F32 => 1,
            DType::I64 => 7,
            // Here booleans are floats that are 0 or 1.
            DType::Bool => return super::no_onnx_form(self.name()),
        };
        node.single_node("Cast", vec![("to", OnnxAttribute::Int(kind))]);
        Ok(())
    }
}
