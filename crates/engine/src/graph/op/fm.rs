//! The second-order term of a factorization machine (Rendle 2010): the sum of the products of all pairs of fields, `y = 0.5 *
//! sum_d ((sum_f x_fd)^2 - sum_f x_fd^2)`, in F D instead of F^2 D steps.
//!
//! B rows, F fields, D dim: x is B x F x D, or B x (F D).

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, expected};
use crate::kernel;
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// Products of all pairs of fields. Outputs: y [B, 1], and the sum of the fields [B, D].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fm {
    /// F.
    pub fields: usize,
}

impl Net {
    /// The sum of the inner products of all pairs of the F vectors of a row, `[B, F, D]` -> `[B, 1]`.
    pub fn fm(&mut self, x: Var) -> Result<Var> {
        match self.shape(x).0.as_slice() {
            &[_, Dim::Fixed(fields), _] => self.fm_of(x, fields),
            _ => expected("fm", "[B, F, D]; `fm_of` takes [B, F * D]", self.shape(x)),
        }
    }

    /// The same for concatenated fields, `[B, F * D]` -> `[B, 1]`.
    pub fn fm_of(&mut self, x: Var, fields: usize) -> Result<Var> {
        let outputs = self.append("fm", Fm { fields }, &[x])?;
        self.stop_gradient(outputs[1]);
        Ok(outputs[0])
    }
}

impl Operator for Fm {
    fn name(&self) -> &'static str {
        "fm"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        let (shape, f) = (&inputs[0].shape, self.fields);
        let dim = match *shape.0.as_slice() {
            [_, Dim::Fixed(fields), Dim::Fixed(dim)] if fields == f => Some(dim),
            [_, Dim::Fixed(columns)] if f > 0 && columns % f == 0 => Some(columns / f),
            _ => None,
        };
        let Some(dim @ 1..) = dim.filter(|_| f > 0) else {
            return expected(self.name(), format!("[B, {f}, D] or [B, {f} * D]"), shape);
        };
        let by = |columns| Signature::float(Shape(vec![shape.0[0], Dim::Fixed(columns)]));
        Ok(vec![by(1), by(dim)])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, width) = (inputs.floats(0), inputs.extent(0, 1..inputs.rank(0)));
        let (y, sums) = outputs.two_floats(0, 1);
        let sums = sums.chunks_exact_mut(width / self.fields);
        for ((x, y), sums) in x.chunks_exact(width).zip(y).zip(sums) {
            *y = kernel::fm_row(x, sums);
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (x, width) = (inputs.floats(0), inputs.extent(0, 1..inputs.rank(0)));
        let rows = x.chunks_exact(width).zip(inputs.output(1).chunks_exact(width / self.fields));
        let (dx, keep) = gradient.begin();
        for (((x, sums), &dy), dx) in rows.zip(inputs.output_gradient(0)).zip(dx.chunks_exact_mut(width)) {
            kernel::fm_row_gradient(x, sums, dy, keep, dx);
        }
        Ok(())
    }

    fn onnx(&self, node: &mut OnnxNode<'_, '_>) -> Result<()> {
        let (x, f) = (node.input(0), self.fields as i64);
        let dim = node.output_shape(1).columns().unwrap_or(1) as i64;
        let shape = node.ints(&[-1, f, dim]);
        let x = node.emit("Reshape", &[&x, &shape], vec![]);
        let (one, half) = (node.ints(&[1]), node.float(0.5));
        let sum = |node: &mut OnnxNode<'_, '_>, x: &str, axis: &str, keep: i64| {
            node.emit("ReduceSum", &[x, axis], vec![("keepdims", OnnxAttribute::Int(keep))])
        };
        // [B, D]: the square of the sum, and the sum of the squares.
        let sums = sum(node, &x, &one, 0);
        node.finish(1, "Identity", &[&sums], vec![]);
        let square_of_sum = node.emit("Mul", &[&sums, &sums], vec![]);
        let squares = node.emit("Mul", &[&x, &x], vec![]);
        let sum_of_squares = sum(node, &squares, &one, 0);
        let difference = node.emit("Sub", &[&square_of_sum, &sum_of_squares], vec![]);
        let y = sum(node, &difference, &one, 1);
        node.finish(0, "Mul", &[&y, &half], vec![]);
        Ok(())
    }
}
