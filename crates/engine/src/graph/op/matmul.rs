//! Matrix products, one or a batch of them.
//!
//! The last two dimensions are the matrices: x is M x K (or K x M, transposed) and y is K x N (or N x K). The leading dimensions
//! are batches, aligned at the right, where size 1 is broadcast. A tensor of one dimension is a row on the left and a column on
//! the right. `bmm` is the same without transposing and broadcasting.

use serde::{Deserialize, Serialize};

use super::broadcast::{self, BroadcastStrides, MAX_RANK, Side};
use super::{Operator, Signature, expect_floats, expected, shapes};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::kernel::matrix::{Orientation, Plain, Transposed, multiply};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// `alpha * x y`, where x and y may be transposed first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Matmul {
    /// Swaps the last two dimensions of x first.
    pub transpose_x: bool,
    /// Swaps the last two dimensions of y first.
    pub transpose_y: bool,
    /// Multiplies the result.
    pub alpha: f32,
}

impl Net {
    /// The product of the last two dimensions of x and y, for each index of the leading dimensions.
    pub fn matmul(&mut self, x: Var, y: Var) -> Result<Var> {
        self.matmul_with(x, y, false, false, 1.0)
    }

    /// `alpha` times the product, optionally with the last two dimensions of x or y swapped first.
    pub fn matmul_with(&mut self, x: Var, y: Var, transpose_x: bool, transpose_y: bool, alpha: f32) -> Result<Var> {
        self.append_one("matmul", Matmul { transpose_x, transpose_y, alpha }, &[x, y])
    }
}

impl Operator for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        let (x, y) = (&inputs[0].shape.0, &inputs[1].shape.0);
        if x.len() > MAX_RANK || y.len() > MAX_RANK || x.is_empty() || y.is_empty() {
            return expected(self.name(), format!("from 1 to {MAX_RANK} dimensions"), shapes(inputs));
        }
        let (m, x_k) = last_two(x, self.transpose_x, true);
        let (y_k, n) = last_two(y, self.transpose_y, false);
        if !x_k.agrees(y_k) {
            let words =
                |transposed: bool, name: &str| if transposed { format!("{name} transposed") } else { name.into() };
            let (x, y) = (words(self.transpose_x, "x"), words(self.transpose_y, "y"));
            return expected(self.name(), format!("{x} [.., M, K] and {y} [.., K, N]"), shapes(inputs));
        }
        let batches = |dims: &[Dim]| dims[..dims.len().saturating_sub(2)].to_vec();
        let Some(mut dims) = broadcast::broadcast_dims(&batches(x), &batches(y)) else {
            return expected(self.name(), "leading dimensions that are equal or 1", shapes(inputs));
        };
        if x.len() > 1 {
            dims.push(m);
        }
        if y.len() > 1 {
            dims.push(n);
        }
        if dims.is_empty() {
            dims.push(Dim::Fixed(1));
        }
        Ok(vec![Signature::float(Shape(dims))])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        Product::of(inputs, self.transpose_x, self.transpose_y).forward(inputs, outputs);
        if self.alpha != 1.0 {
            outputs.floats(0).iter_mut().for_each(|v| *v *= self.alpha);
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let product = Product::of(inputs, self.transpose_x, self.transpose_y);
        let out_gradient = inputs.output_gradient(0);
        if self.alpha == 1.0 {
            product.backward(inputs, gradients, out_gradient);
            return Ok(());
        }
        let mut scaled = gradients.take_scratch();
        scaled.clear();
        scaled.extend(out_gradient.iter().map(|g| g * self.alpha));
        product.backward(inputs, gradients, &scaled);
        gradients.put_scratch(scaled);
        Ok(())
    }
}

/// The dimensions of the matrix after transposing.
fn last_two(dims: &[Dim], transposed: bool, left: bool) -> (Dim, Dim) {
    match (dims, left) {
        (&[only], true) => (Dim::Fixed(1), only),
        (&[only], false) => (only, Dim::Fixed(1)),
        (&[.., rows, columns], _) if !transposed => (rows, columns),
        (&[.., rows, columns], _) => (columns, rows),
        ([], _) => (Dim::Fixed(1), Dim::Fixed(1)),
    }
}

/// The products of a step: their sizes, and which matrix of x is multiplied with which of y.
pub(super) struct Product {
    m: usize,
    n: usize,
    k: usize,
    x: Orientation,
    y: Orientation,
    batches: BroadcastStrides,
}

impl Product {
    /// The products of the first two inputs.
    pub(super) fn of(inputs: &Inputs<'_>, transpose_x: bool, transpose_y: bool) -> Self {
        let (x_rank, y_rank) = (inputs.rank(0), inputs.rank(1));
        let orientation = |transposed: bool, rank: usize| if transposed && rank > 1 { Transposed } else { Plain };
        let (x, y) = (orientation(transpose_x, x_rank), orientation(transpose_y, y_rank));
        let (m, k) = match (x_rank, x) {
            (1, _) => (1, inputs.size(0, 0)),
            (_, Plain) => (inputs.size(0, x_rank - 2), inputs.size(0, x_rank - 1)),
            (_, Transposed) => (inputs.size(0, x_rank - 1), inputs.size(0, x_rank - 2)),
        };
        let n = match (y_rank, y) {
            (1, _) => 1,
            (_, Plain) => inputs.size(1, y_rank - 1),
            (_, Transposed) => inputs.size(1, y_rank - 2),
        };
        let (x_batches, y_batches) = (x_rank.saturating_sub(2), y_rank.saturating_sub(2));
        if y_batches == 0 && x == Plain {
            // All matrices of x are multiplied with one of y: treat them as one matrix with more rows.
            let batches = BroadcastStrides::with(0, |_| (1, 1));
            return Product { m: m * inputs.extent(0, 0..x_batches), n, k, x, y, batches };
        }
        let rank = x_batches.max(y_batches);
        let size = |input: usize, own_rank: usize, axis: usize| match (axis + own_rank).checked_sub(rank) {
            Some(own) => inputs.size(input, own),
            None => 1,
        };
        let batches = BroadcastStrides::with(rank, |axis| (size(0, x_batches, axis), size(1, y_batches, axis)));
        Product { m, n, k, x, y, batches }
    }

    /// `out = x y`.
    pub(super) fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) {
        let (x, y, out) = (inputs.floats(0), inputs.floats(1), outputs.floats(0));
        let (m, n, k) = (self.m, self.n, self.k);
        self.batches.each(|x_at, y_at, at| {
            let (x, y, out) = (nth(x, x_at, m * k), nth(y, y_at, k * n), nth_mut(out, at, m * n));
            multiply(m, n, k, x, self.x, y, self.y, 0.0, out);
        });
    }

    /// With G the gradient of the result: the gradient of x is G yᵀ and that of y is xᵀ G, or their transposes.
    pub(super) fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>, out_gradient: &[f32]) {
        let (x, y) = (inputs.floats(0), inputs.floats(1));
        let (m, n, k) = (self.m, self.n, self.k);
        for (side, input) in [(Side::X, 0), (Side::Y, 1)] {
            let Some(gradient) = gradients.of(input) else { continue };
            // A matrix that several products use gets a contribution from each of them.
            let (own, keep) = if self.batches.repeats(side) { (gradient.accumulate(), 1.0) } else { gradient.begin() };
            self.batches.each(|x_at, y_at, at| {
                let (x, y, g) = (nth(x, x_at, m * k), nth(y, y_at, k * n), nth(out_gradient, at, m * n));
                match (side, self.x, self.y) {
                    (Side::X, Plain, y_side) => {
                        multiply(m, k, n, g, Plain, y, flipped(y_side), keep, nth_mut(own, x_at, m * k));
                    }
                    (Side::X, Transposed, y_side) => {
                        multiply(k, m, n, y, y_side, g, Transposed, keep, nth_mut(own, x_at, m * k));
                    }
                    (Side::Y, x_side, Plain) => {
                        multiply(k, n, m, x, flipped(x_side), g, Plain, keep, nth_mut(own, y_at, k * n));
                    }
                    (Side::Y, x_side, Transposed) => {
                        multiply(n, k, m, g, Transposed, x, x_side, keep, nth_mut(own, y_at, k * n));
                    }
                }
            });
        }
    }
}

fn flipped(orientation: Orientation) -> Orientation {
    match orientation {
        Plain => Transposed,
        Transposed => Plain,
    }
}

fn nth(all: &[f32], index: usize, size: usize) -> &[f32] {
    &all[index * size..][..size]
}

fn nth_mut(all: &mut [f32], index: usize, size: usize) -> &mut [f32] {
    &mut all[index * size..][..size]
}
