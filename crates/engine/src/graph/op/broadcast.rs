//! Broadcasting for ops of two tensors: which element of one is combined with which element of the other.
//!
//! Dimensions are aligned at the right, as in NumPy, or the lower-rank tensor is aligned at an `axis` of the other, as in
//! PaddlePaddle; a dimension of size 1 is repeated. At run time adjacent dimensions with compatible strides are merged, so equal
//! shapes become one run, a row vector or a column becomes rows x columns, and a scalar becomes one run again: the common cases
//! need no code of their own. Nothing here allocates.

use super::{Signature, expect_floats, expected, shapes};
use crate::error::Result;
use crate::graph::onnx_builder::OnnxNode;
use crate::memory::{Gradient, Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// The maximum number of dimensions.
pub(super) const MAX_RANK: usize = 8;

/// Aligns dimensions at the right.
pub(super) const RIGHT: i64 = -1;

/// The signature of the result of floats x and y.
pub(super) fn infer(op: &'static str, inputs: &[Signature], axis: i64) -> Result<Vec<Signature>> {
    expect_floats(op, inputs)?;
    Ok(vec![Signature::float(shape(op, inputs, axis)?)])
}

/// The broadcast shape of x and y.
pub(super) fn shape(op: &'static str, inputs: &[Signature], axis: i64) -> Result<Shape> {
    let (x, y) = (&inputs[0].shape, &inputs[1].shape);
    let rank = x.rank().max(y.rank());
    if rank > MAX_RANK {
        return expected(op, format!("at most {MAX_RANK} dimensions"), shapes(inputs));
    }
    let lower = if x.rank() < y.rank() { x } else { y };
    let Some(alignment) = Alignment::new(x.rank(), y.rank(), axis).filter(|alignment| {
        // PaddlePaddle ignores trailing dimensions of size 1 that do not fit.
        lower.0.iter().skip(rank - alignment.lower_start).all(|&dim| dim == Dim::Fixed(1))
    }) else {
        return expected(op, format!("an axis at which one of {} fits into the other", shapes(inputs)), axis);
    };
    let dims = (0..rank).map(|axis| {
        let at = |shape: &Shape, start: usize| match axis.checked_sub(start) {
            Some(own) => shape.0.get(own).copied().unwrap_or(Dim::Fixed(1)),
            None => Dim::Fixed(1),
        };
        broadcast_dim(at(x, alignment.x_start), at(y, alignment.y_start))
    });
    match dims.collect::<Option<Vec<Dim>>>() {
        Some(dims) => Ok(Shape(dims)),
        None if axis == RIGHT => expected(op, "dimensions that are equal or 1, aligned at the right", shapes(inputs)),
        None => expected(op, format!("dimensions that are equal or 1 from axis {axis} on"), shapes(inputs)),
    }
}

/// The result of broadcasting two dimensions: they must be equal, or one must be 1. If that is known only when the program runs,
/// it is checked then.
pub(super) fn broadcast_dim(x: Dim, y: Dim) -> Option<Dim> {
    match (x, y) {
        (x, y) if x == y => Some(x),
        (Dim::Fixed(1), y) => Some(y),
        (x, Dim::Fixed(1)) => Some(x),
        (Dim::Unknown, Dim::Fixed(n)) | (Dim::Fixed(n), Dim::Unknown) => Some(Dim::Fixed(n)),
        (Dim::PerRow(_), Dim::PerRow(_)) => None,
        (x, y) => x.merge(y),
    }
}

/// The result of broadcasting x and y, aligned at the right.
pub(super) fn broadcast_dims(x: &[Dim], y: &[Dim]) -> Option<Vec<Dim>> {
    let rank = x.len().max(y.len());
    let at = |dims: &[Dim], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(Dim::Fixed(1), |own| dims[own]);
    (0..rank).map(|axis| broadcast_dim(at(x, axis), at(y, axis))).collect()
}

/// `out = f(x, y)` on floats.
#[inline(always)]
pub(super) fn forward(
    inputs: &Inputs<'_>,
    outputs: &mut Outputs<'_>,
    axis: i64,
    f: impl Fn(f32, f32) -> f32,
) -> Result<()> {
    BroadcastStrides::of(inputs, axis).combine(inputs.floats(0), inputs.floats(1), outputs.floats(0), f);
    Ok(())
}

/// `dx += dout * x_slope(x, y)` and `dy += dout * y_slope(x, y)`, each summed over repeated elements.
#[inline(always)]
pub(super) fn backward(
    inputs: &Inputs<'_>,
    gradients: &mut Gradients<'_>,
    axis: i64,
    x_slope: impl Fn(f32, f32) -> f32,
    y_slope: impl Fn(f32, f32) -> f32,
) -> Result<()> {
    let strides = BroadcastStrides::of(inputs, axis);
    let (x, y, out_gradient) = (inputs.floats(0), inputs.floats(1), inputs.output_gradient(0));
    if let Some(gradient) = gradients.of(0) {
        strides.collect(Side::X, x, y, out_gradient, gradient, x_slope);
    }
    if let Some(gradient) = gradients.of(1) {
        strides.collect(Side::Y, x, y, out_gradient, gradient, y_slope);
    }
    Ok(())
}

/// `out = op(x, y)` in ONNX, which aligns at the right: the lower-rank tensor gets trailing dimensions of 1.
pub(super) fn onnx(name: &'static str, node: &mut OnnxNode<'_, '_>, axis: i64, op: &'static str) -> Result<()> {
    let ranks = [node.input_shape(0).rank(), node.input_shape(1).rank()];
    let mut inputs = [node.input(0), node.input(1)];
    if axis != RIGHT && ranks[0] != ranks[1] {
        let lower = usize::from(ranks[1] < ranks[0]);
        let after = ranks[1 - lower].checked_sub(ranks[lower] + axis.max(0) as usize);
        let Some(after) = after else { return super::no_onnx_form(name) };
        let axes: Vec<i64> = (ranks[lower]..ranks[lower] + after).map(|axis| axis as i64).collect();
        let axes = node.ints(&axes);
        inputs[lower] = node.emit("Unsqueeze", &[&inputs[lower], &axes], vec![]);
    }
    node.finish(0, op, &[&inputs[0], &inputs[1]], vec![]);
    Ok(())
}

/// Where the dimensions of x and y start among those of the result.
#[derive(Clone, Copy)]
struct Alignment {
    x_start: usize,
    y_start: usize,
    lower_start: usize,
}

impl Alignment {
    fn new(x_rank: usize, y_rank: usize, axis: i64) -> Option<Self> {
        let rank = x_rank.max(y_rank);
        let lower_start = if axis == RIGHT { x_rank.abs_diff(y_rank) } else { usize::try_from(axis).ok()? };
        if lower_start > rank {
            return None;
        }
        let (x_start, y_start) = if x_rank < y_rank { (lower_start, 0) } else { (0, lower_start) };
        Some(Alignment { x_start, y_start, lower_start })
    }
}

/// One of the two inputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The first.
    X,
    /// The second.
    Y,
}

/// How to iterate over a result, fastest dimension first: sizes, and the strides of x and y (0 where they are repeated).
#[derive(Clone, Copy)]
pub(super) struct BroadcastStrides {
    rank: usize,
    sizes: [usize; MAX_RANK],
    x: [usize; MAX_RANK],
    y: [usize; MAX_RANK],
}

impl BroadcastStrides {
    /// The strides of the first two inputs, whose shapes were checked by [`shape`].
    pub(super) fn of(inputs: &Inputs<'_>, axis: i64) -> Self {
        let (x_rank, y_rank) = (inputs.rank(0), inputs.rank(1));
        let Some(alignment) = Alignment::new(x_rank, y_rank, axis) else {
            return BroadcastStrides::with(0, |_| (1, 1));
        };
        let size = |input: usize, rank: usize, start: usize, axis: usize| match axis.checked_sub(start) {
            Some(own) if own < rank => inputs.size(input, own),
            _ => 1,
        };
        BroadcastStrides::with(x_rank.max(y_rank), |axis| {
            (size(0, x_rank, alignment.x_start, axis), size(1, y_rank, alignment.y_start, axis))
        })
    }

    /// The strides of x and y from their sizes along each axis of the result.
    pub(super) fn with(rank: usize, sizes: impl Fn(usize) -> (usize, usize)) -> Self {
        let mut strides = BroadcastStrides { rank: 0, sizes: [1; MAX_RANK], x: [1; MAX_RANK], y: [1; MAX_RANK] };
        let (mut x_step, mut y_step) = (1, 1);
        for axis in (0..rank).rev() {
            let (x, y) = sizes(axis);
            let size = if x == 1 { y } else { x };
            strides.push(size, if x == 1 { 0 } else { x_step }, if y == 1 { 0 } else { y_step });
            x_step *= x;
            y_step *= y;
        }
        strides
    }

    /// Whether elements of an input are used more than once.
    pub(super) fn repeats(&self, side: Side) -> bool {
        let own = if side == Side::X { &self.x } else { &self.y };
        own[..self.rank].contains(&0)
    }

    /// Calls `visit` with the positions in x, y and the result of each element.
    #[inline(always)]
    pub(super) fn each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        self.each_run(|x, y, out| {
            (0..self.sizes[0]).for_each(|i| visit(x + i * self.x[0], y + i * self.y[0], out + i));
        });
    }

    /// Adds the next slower dimension, or extends the last one if both inputs are contiguous there.
    fn push(&mut self, size: usize, x: usize, y: usize) {
        if size == 1 {
            return;
        }
        if let Some(last) = self.rank.checked_sub(1)
            && x == self.x[last] * self.sizes[last]
            && y == self.y[last] * self.sizes[last]
        {
            self.sizes[last] *= size;
            return;
        }
        (self.sizes[self.rank], self.x[self.rank], self.y[self.rank]) = (size, x, y);
        self.rank += 1;
    }

    /// Calls `visit` with the positions in x, y and the result where each run of the fastest dimension starts.
    #[inline(always)]
    fn each_run(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let runs: usize = self.sizes[1..].iter().product();
        let mut position = [0; MAX_RANK];
        let (mut x, mut y) = (0, 0);
        for run in 0..runs {
            visit(x, y, run * self.sizes[0]);
            for axis in 1..self.rank {
                x += self.x[axis];
                y += self.y[axis];
                position[axis] += 1;
                if position[axis] < self.sizes[axis] {
                    break;
                }
                x -= self.x[axis] * self.sizes[axis];
                y -= self.y[axis] * self.sizes[axis];
                position[axis] = 0;
            }
        }
    }

    /// `out = f(x, y)`, element by element.
    #[inline(always)]
    pub(super) fn combine<T: Copy, U>(&self, x: &[T], y: &[T], out: &mut [U], f: impl Fn(T, T) -> U) {
        let n = self.sizes[0];
        if out.is_empty() {
            return;
        }
        match (self.x[0], self.y[0]) {
            (1, 1) => self.each_run(|x_start, y_start, start| {
                let (x, y) = (&x[x_start..][..n], &y[y_start..][..n]);
                out[start..][..n].iter_mut().zip(x).zip(y).for_each(|((out, &x), &y)| *out = f(x, y));
            }),
            (1, _) => self.each_run(|x_start, y_start, start| {
                let (x, y) = (&x[x_start..][..n], y[y_start]);
                out[start..][..n].iter_mut().zip(x).for_each(|(out, &x)| *out = f(x, y));
            }),
            _ => self.each_run(|x_start, y_start, start| {
                let (x, y) = (x[x_start], &y[y_start..][..n]);
                out[start..][..n].iter_mut().zip(y).for_each(|(out, &y)| *out = f(x, y));
            }),
        }
    }

    /// Adds `out_gradient * slope(x, y)` to the gradient of one input, summed over repeated elements.
    #[inline(always)]
    pub(super) fn collect(
        &self,
        side: Side,
        x: &[f32],
        y: &[f32],
        out_gradient: &[f32],
        gradient: Gradient<'_>,
        slope: impl Fn(f32, f32) -> f32,
    ) {
        // Each element is written once only if none is repeated; otherwise the sum has to start from zeros.
        let (gradient, add) = if self.repeats(side) {
            (gradient.accumulate(), true)
        } else {
            let (gradient, keep) = gradient.begin();
            (gradient, keep != 0.0)
        };
        if out_gradient.is_empty() {
            return;
        }
        let n = self.sizes[0];
        self.each_run(|x_start, y_start, start| {
            let g = &out_gradient[start..][..n];
            let own_start = if side == Side::X { x_start } else { y_start };
            match (self.x[0], self.y[0]) {
                (1, 1) => {
                    let (x, y) = (&x[x_start..][..n], &y[y_start..][..n]);
                    put(&mut gradient[own_start..][..n], add, |i| g[i] * slope(x[i], y[i]));
                }
                (1, _) => {
                    let (x, y) = (&x[x_start..][..n], y[y_start]);
                    match side {
                        Side::X => put(&mut gradient[own_start..][..n], add, |i| g[i] * slope(x[i], y)),
                        Side::Y => gradient[own_start] += sum(n, |i| g[i] * slope(x[i], y)),
                    }
                }
                _ => {
                    let (x, y) = (x[x_start], &y[y_start..][..n]);
                    match side {
                        Side::X => gradient[own_start] += sum(n, |i| g[i] * slope(x, y[i])),
                        Side::Y => put(&mut gradient[own_start..][..n], add, |i| g[i] * slope(x, y[i])),
                    }
                }
            }
        });
    }
}

#[inline(always)]
fn put(to: &mut [f32], add: bool, value: impl Fn(usize) -> f32) {
    if add {
        to.iter_mut().enumerate().for_each(|(i, to)| *to += value(i));
    } else {
        to.iter_mut().enumerate().for_each(|(i, to)| *to = value(i));
    }
}

/// The sum of `value(0..n)` in eight partial sums: the order is fixed, whatever the machine.
#[inline(always)]
fn sum(n: usize, value: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0f32; 8];
    let whole = n - n % 8;
    for start in (0..whole).step_by(8) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += value(start + lane);
        }
    }
    sums.iter().sum::<f32>() + (whole..n).map(value).sum::<f32>()
}
