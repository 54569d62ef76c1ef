//! The plain accessor with weights of 16 bits: D numbers in the space of D / 2 floats, rounded up, then the optimizer's slots in
//! 32 bits.
//!
//! A value that is stored as it is, an initial one or one from a checkpoint, is rounded to the nearest. An update is rounded
//! stochastically, otherwise updates smaller than half a step (1/256 of the weight) would be lost. The random bits depend on
//! the table's seed, the step, the key and the row before the update: two servers, a repeated run and a resumed one round alike,
//! and a key that is twice in a push is rounded differently each time.

use openfleet_core::Key;
use openfleet_core::bfloat16::{round_to_nearest, widen};
use openfleet_core::key::mix;

use super::{CtrFields, NewRow, Push, Row, RowLayout, Target};
use crate::optimizer::{self, Bfloat16Weights};
use crate::sparse::SparseSpec;
use crate::sparse::rows::Rows;

/// Weights of 16 bits, and state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainBfloat16;

/// Floats that D weights take the space of.
#[inline(always)]
fn words(dim: usize) -> usize {
    dim.div_ceil(2)
}

impl RowLayout for PlainBfloat16 {
    fn widths(&self, spec: &SparseSpec) -> (usize, usize) {
        (words(spec.dim) + spec.state_len(), 0)
    }

    #[inline(always)]
    fn pulled_floats(&self, dim: usize) -> usize {
        words(dim)
    }

    fn create(&self, rows: &mut Rows, row: u32, new_row: &NewRow<'_>, _show: f32, _click: f32) {
        let (key, dim) = (rows.key(row), new_row.spec.dim);
        // Rows are usually short; those that are not are rare enough to allocate for.
        let (mut short, mut long) = ([0.0; 64], Vec::new());
        let first = match short.get_mut(..dim) {
            Some(first) => first,
            None => {
                long.resize(dim, 0.0);
                &mut long[..]
            }
        };
        new_row.first_weights(key, first);
        self.restore(rows, row, new_row, first, None, None);
    }

    fn initial(&self, new_row: &NewRow<'_>, key: Key, out: &mut [f32]) {
        new_row.first_weights(key, out);
        out.iter_mut().for_each(|weight| *weight = widen(round_to_nearest(*weight)));
    }

    #[inline(always)]
    fn pull(&self, rows: &Rows, row: u32, out: &mut [f32]) {
        let bits = bytemuck::cast_slice::<f32, u16>(&rows.get(row)[..words(out.len())]);
        // Blocks of a fixed size, because rows are too short for the loops that the compiler makes of slices.
        let ((blocks, rest), (out_blocks, out_rest)) = (bits[..out.len()].as_chunks::<8>(), out.as_chunks_mut::<8>());
        for (weights, bits) in out_blocks.iter_mut().zip(blocks) {
            *weights = bits.map(widen);
        }
        for (weight, bits) in out_rest.iter_mut().zip(rest) {
            *weight = widen(*bits);
        }
    }

    #[inline(always)]
    fn push(&self, rows: &mut Rows, push: &Push<'_>, targets: &[Target]) {
        let dim = push.new_row.spec.dim;
        push.update.apply_rows(push.regularizer, dim, &mut Touched { rows, push, targets, dim });
    }

    fn show<'a>(&self, rows: &'a Rows, row: u32, spec: &SparseSpec, buffer: &'a mut Vec<f32>) -> Row<'a> {
        buffer.resize(spec.dim, 0.0);
        self.pull(rows, row, buffer);
        let state = &rows.get(row)[words(spec.dim)..];
        Row { key: rows.key(row), stamp: rows.stamp(row), weights: buffer, state, ctr: None }
    }

    fn restore(
        &self,
        rows: &mut Rows,
        row: u32,
        new_row: &NewRow<'_>,
        weights: &[f32],
        state: Option<&[f32]>,
        _ctr: Option<CtrFields>,
    ) {
        let dim = new_row.spec.dim;
        let (row_weights, row_state) = rows.get_mut(row).split_at_mut(words(dim));
        for (bits, weight) in bytemuck::cast_slice_mut::<f32, u16>(row_weights).iter_mut().zip(weights) {
            *bits = round_to_nearest(*weight);
        }
        match state {
            Some(state) => row_state.copy_from_slice(state),
            None => new_row.spec.optimizer.init_state(dim, row_state),
        }
    }
}

/// The rows to update, with their gradients.
struct Touched<'a> {
    rows: &'a mut Rows,
    push: &'a Push<'a>,
    targets: &'a [Target],
    dim: usize,
}

impl optimizer::Rows for Touched<'_> {
    type Weights<'a>
        = Bfloat16Weights<'a>
    where
        Self: 'a;

    #[inline(always)]
    fn next(&mut self) -> Option<(Bfloat16Weights<'_>, &mut [f32], &[f32])> {
        let (target, rest) = self.targets.split_first()?;
        self.targets = rest;
        let key = self.rows.key(target.row);
        let (weights, state) = self.rows.get_mut(target.row).split_at_mut(words(self.dim));
        let seed = mix(self.push.rounding ^ key ^ u64::from(weights[0].to_bits())) as u32;
        let bits = &mut bytemuck::cast_slice_mut::<f32, u16>(weights)[..self.dim];
        Some((Bfloat16Weights { bits, seed }, state, self.push.gradient(target.at)))
    }
}
