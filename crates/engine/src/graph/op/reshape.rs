//! The same elements in another shape.
//!
//! The target is written as in PaddlePaddle: 0 copies the dimension at that position, and one -1 takes the rest. The elements
//! decide which dimensions grow with the batch: `[B, 5, 1] -> [-1, 1]` has 5 B rows.

use serde::{Deserialize, Serialize};

use super::size_inputs::{Size, SizeInputs};
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
    /// Which sizes of the target are the values of further inputs.
    #[serde(default, skip_serializing_if = "SizeInputs::is_empty")]
    sizes: SizeInputs,
}

impl Net {
    /// The same elements in another shape: 0 copies the dimension at that position, one -1 takes the rest.
    pub fn reshape(&mut self, x: Var, shape: &[i64]) -> Result<Var> {
        self.reshape_to(x, &shape.iter().map(|&size| Size::Known(size)).collect::<Vec<_>>())
    }

    /// The same elements in a shape of which some sizes are the values of variables.
    pub fn reshape_to(&mut self, x: Var, shape: &[Size]) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        let (shape, sizes, inputs) = SizeInputs::split(x, shape);
        self.append_one("reshape", Reshape { shape, integers, sizes }, &inputs)
    }
}

impl Reshape {
    fn target(&self, x: &Shape, shape: &[Option<i64>]) -> Result<Shape> {
        let mut dims = Vec::with_capacity(shape.len());
        let mut open = None;
        for (axis, &size) in shape.iter().enumerate() {
            dims.push(match size {
                Some(-1) if open.is_some() => return expected("reshape", "a single -1", words(shape)),
                Some(-1) => {
                    open = Some(axis);
                    Dim::Fixed(1)
                }
                Some(0) => match x.0.get(axis) {
                    Some(&dim) => dim,
                    None => return expected("reshape", format!("0 only where {x} has a dimension"), words(shape)),
                },
                Some(size) => match usize::try_from(size) {
                    Ok(size) => Dim::Fixed(size),
                    Err(_) => return expected("reshape", "sizes, 0 or -1", words(shape)),
                },
                None => Dim::Unknown,
            });
        }
        let (all, known) = (Shape::product(&x.0), Shape::product(&dims));
        if let Some(open) = open {
            match divide(all, known) {
                Some(rest) => dims[open] = rest,
                None => {
                    let wanted = format!("dimensions whose product divides the elements of {x}");
                    return expected("reshape", wanted, words(shape));
                }
            }
        } else if matches!((all, known), (Dim::PerRow(_), Dim::Fixed(_))) {
            return expected(
                "reshape",
                format!("as many elements as {x} has"),
                format!("{}; write -1 or 0 for the batch", words(shape)),
            );
        } else if all.merge(known).is_none() || matches!((all, known), (Dim::PerRow(a), Dim::PerRow(b)) if a != b) {
            return expected("reshape", format!("as many elements as {x} has"), words(shape));
        }
        Ok(Shape(dims))
    }
}

fn words(shape: &[Option<i64>]) -> String {
    let words = shape.iter().map(|size| size.map_or_else(|| "a variable".into(), |size| size.to_string()));
    format!("[{}]", words.collect::<Vec<_>>().join(", "))
}

/// The dimension that, multiplied by `known`, gives `all`.
fn divide(all: Dim, known: Dim) -> Option<Dim> {
    let exact = |all: usize, known: usize| (known > 0 && all.is_multiple_of(known)).then(|| all / known);
    match (all, known) {
        (Dim::Fixed(all), Dim::Fixed(known)) => exact(all, known).map(Dim::Fixed),
        (Dim::PerRow(all), Dim::PerRow(known)) => exact(all, known).map(Dim::Fixed),
        (Dim::PerRow(all), Dim::Fixed(known)) if all.is_multiple_of(known.max(1)) => {
            exact(all, known).map(Dim::PerRow)
        }
        // Checked when the program runs.
        _ => Some(Dim::Unknown),
    }
}

impl Operator for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        view::moved(self.name(), &inputs[..1], self.target(&inputs[0].shape, &self.sizes.unknown_in(&self.shape))?)
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        let shape: Vec<Option<i64>> = self.sizes.read(&self.shape, values).into_iter().map(Some).collect();
        view::moved(self.name(), &inputs[..1], self.target(&inputs[0].shape, &shape)?)
    }

    fn is_sized_by(&self, input: usize) -> bool {
        input > 0
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
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
