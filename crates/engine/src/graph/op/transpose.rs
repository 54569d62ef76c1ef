//! Permutes dimensions.

use serde::{Deserialize, Serialize};

use super::view::{self, View};
use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::Shape;

/// Dimension i of the result is dimension `perm[i]` of x.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Transpose {
    /// Contains every dimension of x once.
    pub perm: Vec<usize>,
    integers: bool,
}

impl Net {
    /// Permutes dimensions: dimension i of the result is dimension `perm[i]` of x.
    pub fn transpose(&mut self, x: Var, perm: &[usize]) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("transpose", Transpose { perm: perm.to_vec(), integers }, &[x])
    }
}

impl Transpose {
    fn view(&self, inputs: &Inputs<'_>) -> View {
        let rank = inputs.rank(0);
        let mut view = View::new(0);
        for &axis in self.perm.iter().rev() {
            view.push(inputs.size(0, axis), inputs.extent(0, axis + 1..rank));
        }
        view
    }
}

impl Operator for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let shape = &inputs[0].shape;
        let each_once = self.perm.len() == shape.rank() && (0..shape.rank()).all(|axis| self.perm.contains(&axis));
        if !each_once {
            return expected(self.name(), format!("each dimension of {shape} once"), format!("{:?}", self.perm));
        }
        view::moved(self.name(), inputs, Shape(self.perm.iter().map(|&axis| shape.0[axis]).collect()))
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        self.view(inputs).forward(inputs, outputs, self.integers)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        self.view(inputs).backward(inputs, gradients)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let perm = self.perm.iter().map(|&axis| axis as i64).collect();
        node.single_node("Transpose", vec![("perm", OnnxAttribute::Ints(perm))]);
        Ok(())
    }
}
