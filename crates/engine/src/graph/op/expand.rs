//! Repeats dimensions of 1 up to a given shape.

use serde::{Deserialize, Serialize};

use super::size_inputs::{Size, SizeInputs};
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
    /// Which dimensions of the result are the values of further inputs.
    #[serde(default, skip_serializing_if = "SizeInputs::is_empty")]
    sizes: SizeInputs,
    /// Whether the result has the shape that all inputs broadcast to, which is known only when the program runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    like: bool,
}

impl Net {
    /// Repeats dimensions of 1 up to `shape`, aligned at the right; -1 keeps a dimension as it is.
    pub fn expand(&mut self, x: Var, shape: &[i64]) -> Result<Var> {
        self.expand_to_sizes(x, &shape.iter().map(|&size| Size::Known(size)).collect::<Vec<_>>())
    }

    /// Repeats dimensions of 1 up to a shape of which some sizes are the values of variables.
    pub fn expand_to_sizes(&mut self, x: Var, shape: &[Size]) -> Result<Var> {
        let own = self.shape(x).clone();
        let (list, sizes, inputs) = SizeInputs::split(x, shape);
        let mut dims = Vec::with_capacity(shape.len());
        for (axis, size) in sizes.unknown_in(&list).into_iter().enumerate() {
            let kept = (axis + own.rank()).checked_sub(shape.len()).map(|at| own.0[at]);
            dims.push(match (size.map(usize::try_from), kept) {
                (None, _) => Dim::Unknown,
                (Some(Ok(size)), _) => Dim::Fixed(size),
                (Some(Err(_)), Some(dim)) if size == Some(-1) => dim,
                _ => {
                    let wanted = format!("sizes, and -1 only where {own} has a dimension");
                    return expected("expand", wanted, format!("{list:?}"));
                }
            });
        }
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("expand", Expand { shape: Shape(dims), integers, sizes, like: false }, &inputs)
    }

    /// Repeats dimensions of 1 up to the shape of `y`, aligned at the right.
    pub fn expand_as(&mut self, x: Var, y: Var) -> Result<Var> {
        let shape = self.shape(y).clone();
        self.expand_like(x, shape, &[y])
    }

    /// Repeats dimensions of 1 up to `shape`, to which x and `others` broadcast.
    pub(super) fn expand_like(&mut self, x: Var, shape: Shape, others: &[Var]) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        let like = shape.has_unknown();
        let op = Expand { shape, integers, sizes: SizeInputs::default(), like };
        let mut inputs = vec![x];
        inputs.extend(others.iter().filter(|_| like));
        self.append_one("expand", op, &inputs)
    }
}

impl Expand {
    /// The shape of the result when the program runs.
    fn target(&self, inputs: &[Signature], values: &Inputs<'_>) -> Shape {
        if self.like {
            // Shapes that cannot be broadcast are reported by the check.
            let together = inputs.iter().try_fold(Vec::new(), |dims, one| broadcast::broadcast_dims(&dims, &one.shape.0));
            return together.map_or_else(|| inputs[1].shape.clone(), Shape);
        }
        let own = &inputs[0].shape;
        let sizes = self.sizes.read(&vec![-1; self.shape.rank()], values);
        let dims = self.shape.0.iter().zip(sizes).enumerate().map(|(axis, (&dim, size))| match dim {
            Dim::Fixed(size) => Dim::Fixed(size),
            Dim::PerRow(times) => Dim::Fixed(times * values.rows()),
            Dim::Unknown => match (usize::try_from(size), (axis + own.rank()).checked_sub(self.shape.rank())) {
                (Ok(size), _) => Dim::Fixed(size),
                (Err(_), Some(at)) => own.0[at],
                (Err(_), None) => Dim::Fixed(1),
            },
        });
        Shape(dims.collect())
    }

    fn check(&self, inputs: &[Signature], shape: Shape) -> Result<Vec<Signature>> {
        let x = &inputs[0].shape;
        let fits = broadcast::broadcast_dims(&x.0, &shape.0).is_some_and(|dims| dims.len() == shape.rank());
        if !fits || x.0.iter().rev().zip(shape.0.iter().rev()).any(|(x, y)| *y == Dim::Fixed(1) && x != y) {
            let wanted = format!("dimensions that are 1 or those of {shape}, aligned at the right");
            return expected(self.name(), wanted, x);
        }
        let outputs = view::moved(self.name(), &inputs[..1], shape)?;
        view::expect_tensors(self.name(), &outputs)?;
        Ok(outputs)
    }

    fn view(&self, inputs: &Inputs<'_>) -> View {
        let (x_rank, rank) = (inputs.rank(0), inputs.output_rank(0));
        let mut view = View::new(0);
        for axis in (0..rank).rev() {
            let size = inputs.output_size(0, axis);
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
        self.check(inputs, self.shape.clone())
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        self.check(inputs, self.target(inputs, values))
    }

    fn is_sized_by(&self, input: usize) -> bool {
        input > 0 && !self.like
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        self.view(inputs).forward(inputs, outputs, self.integers)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        self.view(inputs).backward(inputs, gradients)
    }
}
