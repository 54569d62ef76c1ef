//! The plain accessor: D weights, then the optimizer's slots. Rows are only removed by age or capacity, which
//! the table handles.

use openfleet_core::Key;

use super::{Additive, CtrFields, NewRow, Push, Row, RowLayout, Target};
use crate::optimizer;
use crate::sparse::SparseSpec;
use crate::sparse::rows::Rows;

/// Weights and state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plain;

impl RowLayout for Plain {
    fn widths(&self, spec: &SparseSpec) -> (usize, usize) {
        (spec.dim + spec.state_len(), 0)
    }

    #[inline(always)]
    fn pulled_floats(&self, dim: usize) -> usize {
        dim
    }

    fn create(&self, rows: &mut Rows, row: u32, new_row: &NewRow<'_>, _show: f32, _click: f32) {
        let (key, dim) = (rows.key(row), new_row.spec.dim);
        let (weights, state) = rows.get_mut(row).split_at_mut(dim);
        new_row.first_weights(key, weights);
        new_row.spec.optimizer.init_state(dim, state);
    }

    fn initial(&self, new_row: &NewRow<'_>, key: Key, out: &mut [f32]) {
        new_row.first_weights(key, out);
    }

    #[inline(always)]
    fn pull(&self, rows: &Rows, row: u32, out: &mut [f32]) {
        out.copy_from_slice(&rows.get(row)[..out.len()]);
    }

    #[inline(always)]
    fn push(&self, rows: &mut Rows, push: &Push<'_>, targets: &[Target]) {
        let dim = push.new_row.spec.dim;
        push.update.apply_rows(push.regularizer, dim, &mut Touched { rows, push, targets, dim });
    }

    fn show<'a>(&self, rows: &'a Rows, row: u32, spec: &SparseSpec, _buffer: &'a mut Vec<f32>) -> Row<'a> {
        let (weights, state) = rows.get(row).split_at(spec.dim);
        Row { key: rows.key(row), stamp: rows.stamp(row), weights, state, ctr: None }
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
        let (row_weights, row_state) = rows.get_mut(row).split_at_mut(dim);
        row_weights.copy_from_slice(weights);
        match state {
            Some(state) => row_state.copy_from_slice(state),
            None => new_row.spec.optimizer.init_state(dim, row_state),
        }
    }
}

impl Additive for Plain {
    #[inline(always)]
    fn add(&self, rows: &mut Rows, row: u32, delta: &[f32]) {
        for (weight, difference) in rows.get_mut(row).iter_mut().zip(delta) {
            *weight += difference;
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
        = &'a mut [f32]
    where
        Self: 'a;

    #[inline(always)]
    fn next(&mut self) -> Option<(&mut [f32], &mut [f32], &[f32])> {
        let (target, rest) = self.targets.split_first()?;
        self.targets = rest;
        let (weights, state) = self.rows.get_mut(target.row).split_at_mut(self.dim);
        Some((weights, state, self.push.gradient(target.at)))
    }
}
