//! The same elements in another shape.
//!
//! The target is written as in PaddlePaddle: 0 copies the dimension at that position, and one -1 takes the rest. The elements
//! decide which dimensions grow with the batch: `[B, 5, 1] -> [-1, 1]` has 5 B rows.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// The same elements in another shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reshape {
    /// The target: 0 copies a dimension, -1 takes the rest.
    pub shape: Vec<i64>,
    integers: bool,
}

impl Net {
    /// The same elements in another shape: 0 copies the dimension at that position, one -1 takes the rest.
    pub fn reshape(&mut self, x: Var, shape: &[i64]) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("reshape", Reshape { shape: shape.to_vec(), integers }, &[x])
    }
}

impl Reshape {
    fn target(&self, x: &Shape) -> Result<Shape> {
        let mut dims = Vec::with_capacity(self.shape.len());
        let mut open = None;
        for (axis, &size) in self.shape.iter().enumerate() {
            dims.push(match size {
                -1 if open.is_some() => return expected("reshape", "a single -1", format!("{:?}", self.shape)),
                -1 => {
                    open = Some(axis);
                    Dim::Fixed(1)
                }
                0 => match x.0.get(axis) {
                    Some(&dim) => dim,
                    None => return expected("reshape", format!("0 only where {x} has a dimension"), self.words()),
                },
                size => match usize::try_from(size) {
                    Ok(size) => Dim::Fixed(size),
                    Err(_) => return expected("reshape", "sizes, 0 or -1", self.words()),
                },
            });
        }
        let (Some(all), Some(known)) = (Shape::product(&x.0), Shape::product(&dims)) else {
            return expected("reshape", "the batch as a single dimension", format!("{x} to {}", self.words()));
        };
        if let Some(open) = open {
            match divide(all, known) {
                Some(rest) => dims[open] = rest,
                None => {
                    let wanted = format!("dimensions whose product divides the elements of {x}");
                    return expected("reshape", wanted, self.words());
                }
            }
        } else if all != known {
            let hint = match (all, known) {
                (Dim::PerRow(_), Dim::Fixed(_)) => "; write -1 or 0 for the batch",
                _ => "",
            };
            return expected("reshape", format!("as many elements as {x} has"), format!("{}{hint}", self.words()));
        }
        Ok(Shape(dims))
    }

    fn words(&self) -> String {
        format!("{:?}", self.shape)
    }
}

/// The dimension that, multiplied by `known`, gives `all`.
fn divide(all: Dim, known: Dim) -> Option<Dim> {
    let exact = |all: usize, known: usize| (known > 0 && all.is_multiple_of(known)).then(|| all / known);
    match (all, known) {
        (Dim::Fixed(all), Dim::Fixed(known)) => exact(all, known).map(Dim::Fixed),
        (Dim::PerRow(all), Dim::Fixed(known)) => exact(all, known).map(Dim::PerRow),
        (Dim::PerRow(all), Dim::PerRow(known)) => exact(all, known).map(Dim::Fixed),
        (Dim::Fixed(_), Dim::PerRow(_)) => None,
    }
}

impl Operator for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        view::moved(self.name(), inputs, self.target(&inputs[0].shape)?)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        view::copy(inputs, outputs, self.integers)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        view::copy_back(inputs, gradients)
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let x = node.input(0);
        node.finish_reshaped(0, &x);
        Ok(())
    }
}
