//! What ops share that only move elements: which element of x each element of the result is.
//!
//! A transposed, sliced, tiled or expanded tensor is x with other strides. Nothing here allocates.

use super::broadcast::MAX_RANK;
use super::{Signature, expected};
use crate::error::Result;
use crate::memory::{Gradient, Gradients, Inputs, Outputs};
use crate::value::Shape;

/// Tiling splits each dimension into two.
const MAX_AXES: usize = 2 * MAX_RANK;

/// The signature after moving the elements of the first input: the same type in another shape.
pub(super) fn moved(op: &'static str, inputs: &[Signature], shape: Shape) -> Result<Vec<Signature>> {
    expect_tensors(op, inputs)?;
    Ok(vec![Signature { shape, ..inputs[0].clone() }])
}

/// Fails if an input is ragged or has too many dimensions.
pub(super) fn expect_tensors(op: &'static str, inputs: &[Signature]) -> Result<()> {
    if inputs.iter().any(|input| input.ragged) {
        return expected(op, "a fixed number of elements per row", "a slot of variable length");
    }
    match inputs.iter().find(|input| input.shape.rank() > MAX_RANK) {
        Some(input) => expected(op, format!("at most {MAX_RANK} dimensions"), &input.shape),
        None => Ok(()),
    }
}

/// Copies the elements of the only input in order, floats or integers.
pub(super) fn copy(inputs: &Inputs<'_>, outputs: &mut Outputs<'_>, integers: bool) -> Result<()> {
    if integers {
        outputs.ints(0).copy_from_slice(inputs.ints(0));
    } else {
        outputs.floats(0).copy_from_slice(inputs.floats(0));
    }
    Ok(())
}

/// The gradient of [`copy`].
pub(super) fn copy_back(inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
    if let Some(gradient) = gradients.of(0) {
        let out_gradient = inputs.output_gradient(0);
        gradient.add(|i| out_gradient[i]);
    }
    Ok(())
}

/// How to iterate over x in the order of the result, fastest dimension first: sizes and strides of x.
#[derive(Clone, Copy)]
pub(super) struct View {
    start: usize,
    rank: usize,
    sizes: [usize; MAX_AXES],
    steps: [usize; MAX_AXES],
}

impl View {
    /// A single element, `start`; dimensions are added with [`push`](Self::push).
    pub(super) fn new(start: usize) -> Self {
        View { start, rank: 0, sizes: [1; MAX_AXES], steps: [1; MAX_AXES] }
    }

    /// Adds the next slower dimension of the result, along which x has stride `step`.
    pub(super) fn push(&mut self, size: usize, step: usize) {
        if size == 1 {
            return;
        }
        if let Some(last) = self.rank.checked_sub(1)
            && step == self.steps[last] * self.sizes[last]
        {
            self.sizes[last] *= size;
            return;
        }
        (self.sizes[self.rank], self.steps[self.rank]) = (size, step);
        self.rank += 1;
    }

    /// `out = x` in the order of this view, for integers or floats of the first input.
    pub(super) fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>, integers: bool) -> Result<()> {
        if integers {
            self.read(inputs.ints(0), outputs.ints(0));
        } else {
            self.read(inputs.floats(0), outputs.floats(0));
        }
        Ok(())
    }

    /// Adds the gradient of the result to that of the first input.
    pub(super) fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        if let Some(gradient) = gradients.of(0) {
            self.add(inputs.output_gradient(0), gradient);
        }
        Ok(())
    }

    fn read<T: Copy>(&self, x: &[T], out: &mut [T]) {
        let (n, step) = (self.sizes[0], self.steps[0]);
        if out.is_empty() {
            return;
        }
        self.each_run(|from, to| {
            let out = &mut out[to..][..n];
            match step {
                0 => out.fill(x[from]),
                1 => out.copy_from_slice(&x[from..][..n]),
                step => out.iter_mut().zip(x[from..].iter().step_by(step)).for_each(|(out, &x)| *out = x),
            }
        });
    }

    fn add(&self, out_gradient: &[f32], gradient: Gradient<'_>) {
        let n = self.sizes[0];
        let gradient = gradient.accumulate();
        if out_gradient.is_empty() {
            return;
        }
        self.each_run(|from, to| {
            let g = &out_gradient[to..][..n];
            match self.steps[0] {
                0 => gradient[from] += g.iter().sum::<f32>(),
                step => gradient[from..].iter_mut().step_by(step).zip(g).for_each(|(own, g)| *own += g),
            }
        });
    }

    /// Calls `visit` with the positions in x and the result where each run of the fastest dimension starts.
    #[inline(always)]
    fn each_run(&self, mut visit: impl FnMut(usize, usize)) {
        let runs: usize = self.sizes[1..].iter().product();
        let mut position = [0; MAX_AXES];
        let mut from = self.start;
        for run in 0..runs {
            visit(from, run * self.sizes[0]);
            for axis in 1..self.rank {
                from += self.steps[axis];
                position[axis] += 1;
                if position[axis] < self.sizes[axis] {
                    break;
                }
                from -= self.steps[axis] * self.sizes[axis];
                position[axis] = 0;
            }
        }
    }
}
