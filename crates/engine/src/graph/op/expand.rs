//! Repeats dimensions of 1 up to a given shape.

use serde::{Deserialize, Serialize};

use super::view::{self, View};
use super::{Operator, Signature, broadcast, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// Repeats dimensions of 1 up to a given shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expand {
    /// The shape of the result.
    pub shape: Shape,
    integers: bool,
}

impl Net {
    /// Repeats dimensions of 1 up to `shape`, aligned at the right; -1 keeps a dimension as it is.
    pub fn expand(&mut self, x: Var, shape: &[i64]) -> Result<Var> {
        let own = self.shape(x).clone();
        let mut dims = Vec::with_capacity(shape.len());
        for (axis, &size) in shape.iter().enumerate() {
            let kept = (axis + own.rank()).checked_sub(shape.len()).map(|at| own.0[at]);
            dims.push(match (usize::try_from(size), kept) {
                (Ok(size), _) => Dim::Fixed(size),
                (Err(_), Some(dim)) if size == -1 => dim,
                _ => {
                    let wanted = format!("sizes, and -1 only where {own} has a dimension");
                    return expected("expand", wanted, format!("{shape:?}"));
                }
            });
        }
        self.expand_to(x, Shape(dims))
    }

    /// Repeats dimensions of 1 up to the shape of `y`, aligned at the right.
    pub fn expand_as(&mut self, x: Var, y: Var) -> Result<Var> {
        self.expand_to(x, self.shape(y).clone())
    }

    pub(super) fn expand_to(&mut self, x: Var, shape: Shape) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("expand", Expand { shape, integers }, &[x])
    }
}

impl Expand {
    fn view(&self, inputs: &Inputs<'_>) -> View {
        let (x_rank, rank) = (inputs.rank(0), self.shape.rank());
        let mut view = View::new(0);
        for axis in (0..rank).rev() {
            let size = self.shape.0[axis].size(inputs.rows());
            match (axis + x_rank).checked_sub(rank) {
                Some(own) if inputs.size(0, own) == size => view.push(size, inputs.extent(0, own + 1..x_rank)),
                _ => view.push(size, 0),
            }
        }
        view
    }
}

impl Operator for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let x = &inputs[0].shape;
        if broadcast::broadcast_dims(&x.0, &self.shape.0).as_ref() != Some(&self.shape.0) {
            let wanted = format!("dimensions that are 1 or those of {}, aligned at the right", self.shape);
            return expected(self.name(), wanted, x);
        }
        let outputs = view::moved(self.name(), inputs, self.shape.clone())?;
        view::expect_tensors(self.name(), &outputs)?;
        Ok(outputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        self.view(inputs).forward(inputs, outputs, self.integers)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        self.view(inputs).backward(inputs, gradients)
    }
}
