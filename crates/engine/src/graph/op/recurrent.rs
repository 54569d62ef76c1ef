//! What the recurrent ops share: the order of the steps, rows that end early, and the gradients of the recurrent product.
//!
//! T steps, B rows, H elements of a state, G gates of H elements each. Everything is step by step: x is `[T, B, G H]`, the states
//! are `[T, B, H]`. The caller has multiplied the inputs of all steps with their weights already, in one product; only the product
//! with the state before needs the steps one by one. A row of length n keeps its state from step n on; in reverse order it begins
//! at step n - 1.

use super::{Signature, expect_floats, expected, shapes};
use crate::error::Result;
use crate::kernel;
use crate::kernel::matrix::{Plain, Transposed, multiply};
use crate::memory::{Gradients, Inputs};
use crate::value::{DType, Dim, Shape};

/// The sizes and the order of the steps of a recurrent op. Its inputs: gates of x, weights `[G H, H]`, bias `[G H]`, the first
/// states (one or two of `[B, H]`), and optionally the lengths of the rows, integers `[B]`.
pub(super) struct Steps<'a> {
    pub(super) steps: usize,
    pub(super) rows: usize,
    pub(super) state: usize,
    pub(super) gates: usize,
    reverse: bool,
    lengths: Option<&'a [u64]>,
}

/// The signatures of states `[T, B, H]` and of gates `[T, B, G H]`.
pub(super) fn infer(
    op: &'static str,
    inputs: &[Signature],
    gates: usize,
    first_states: usize,
) -> Result<(Signature, Signature)> {
    expect_floats(op, &inputs[..3 + first_states])?;
    let wanted = || format!("x [T, B, {gates} H], weights [{gates} H, H], a bias [{gates} H] and first states [B, H]");
    let (&[steps, rows, Dim::Fixed(width)], &[Dim::Fixed(height), state @ Dim::Fixed(size)]) =
        (&inputs[0].shape.0[..], &inputs[1].shape.0[..])
    else {
        return expected(op, wanted(), shapes(inputs));
    };
    let is_state = |input: &Signature| match input.shape.0[..] {
        [own, Dim::Fixed(own_size)] => own.agrees(rows) && own_size == size,
        _ => false,
    };
    let fits = width == gates * size
        && height == width
        && inputs[2].shape.0 == [Dim::Fixed(width)]
        && inputs[3..3 + first_states].iter().all(is_state);
    if !fits {
        return expected(op, wanted(), shapes(inputs));
    }
    if let Some(lengths) = inputs.get(3 + first_states)
        && (lengths.dtype != DType::I64 || lengths.ragged || lengths.shape.rank() != 1)
    {
        return expected(op, "the lengths of the rows as integers [B]", &lengths.shape);
    }
    let states = Signature::float(Shape(vec![steps, rows, state]));
    Ok((states, inputs[0].clone()))
}

impl<'a> Steps<'a> {
    pub(super) fn of(inputs: &Inputs<'a>, gates: usize, first_states: usize, reverse: bool) -> Self {
        let lengths = (inputs.count() > 3 + first_states).then(|| inputs.ints(3 + first_states));
        let (steps, rows, state) = (inputs.size(0, 0), inputs.size(0, 1), inputs.size(1, 1));
        Steps { steps, rows, state, gates, reverse, lengths }
    }

    /// The elements of the states of all rows at one step.
    pub(super) fn block(&self) -> usize {
        self.rows * self.state
    }

    /// The steps in the order in which they are computed.
    pub(super) fn order(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let (steps, reverse) = (self.steps, self.reverse);
        (0..steps).map(move |step| if reverse { steps - 1 - step } else { step })
    }

    /// Whether a row has an element at a step.
    pub(super) fn has(&self, step: usize, row: usize) -> bool {
        self.lengths.is_none_or(|lengths| (step as u64) < lengths[row])
    }

    /// Copies the states of all rows before a step to the place of the step, where they are changed.
    pub(super) fn begin<'s>(&self, step: usize, states: &'s mut [f32], first: &[f32]) -> &'s mut [f32] {
        let (block, own) = (self.block(), step * self.block());
        match self.step_before(step) {
            Some(before) => states.copy_within(before * block..(before + 1) * block, own),
            None => states[own..][..block].copy_from_slice(first),
        }
        &mut states[own..][..block]
    }

    fn step_before(&self, step: usize) -> Option<usize> {
        if self.reverse { (step + 1 < self.steps).then_some(step + 1) } else { step.checked_sub(1) }
    }

    /// The states of all rows before a step: those of the step before it, or the first ones.
    pub(super) fn before<'s>(&self, step: usize, states: &'s [f32], first: &'s [f32]) -> &'s [f32] {
        self.step_before(step).map_or(first, |before| &states[before * self.block()..][..self.block()])
    }

    /// `out = h weightsᵀ`, for the states of all rows before a step.
    pub(super) fn multiply(&self, before: &[f32], weights: &[f32], out: &mut [f32]) {
        multiply(self.rows, self.gates * self.state, self.state, before, Plain, weights, Transposed, 0.0, out);
    }

    /// `gradient += d weights`, where d is the gradient of the product of one step.
    pub(super) fn multiply_back(&self, d: &[f32], weights: &[f32], gradient: &mut [f32]) {
        multiply(self.rows, self.state, self.gates * self.state, d, Plain, weights, Plain, 1.0, gradient);
    }

    /// Adds to the gradients of weights and bias, given the gradients `d` `[T, B, G H]` of the products of all steps.
    pub(super) fn add_parameter_gradients(
        &self,
        gradients: &mut Gradients<'_>,
        d: &[f32],
        states: &[f32],
        first: &[f32],
    ) {
        let width = self.gates * self.state;
        if let Some(gradient) = gradients.of(1) {
            let own = gradient.accumulate();
            for step in 0..self.steps {
                let d = &d[step * self.rows * width..][..self.rows * width];
                let before = self.before(step, states, first);
                multiply(width, self.state, self.rows, d, Transposed, before, Plain, 1.0, own);
            }
        }
        if let Some(gradient) = gradients.of(2) {
            let own = gradient.accumulate();
            d.chunks_exact(width).for_each(|d| kernel::add(d, own));
        }
    }
}
