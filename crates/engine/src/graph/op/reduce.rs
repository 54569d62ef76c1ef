//! What the reductions share: which axes are reduced, the shape of the result, and the iteration over both tensors.
//!
//! Adjacent reduced axes make a tensor `outer x middle x inner`; in general reduced and kept axes alternate. The iteration covers
//! both: it visits the input once, in memory order, in runs. A run is the longest sequence of last axes that are all reduced (the
//! run becomes one element) or all kept (it becomes, element by element, a run of the same length in the result).

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Signature, expect_floats, expected};
use crate::error::Result;
use crate::graph::onnx_builder::{OnnxAttribute, OnnxNode};
use crate::memory::Inputs;
use crate::value::{Dim, Shape};

/// Which axes are reduced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axes {
    /// For each axis of the input, whether it is reduced.
    reduced: Vec<bool>,
    /// Whether reduced axes are kept with size 1.
    keep_dim: bool,
}

impl Axes {
    /// Resolves axes, which may count from the end; an empty list means all of them.
    pub(super) fn resolve(op: &'static str, shape: &Shape, axes: &[i64], keep_dim: bool) -> Result<Self> {
        let mut reduced = vec![axes.is_empty(); shape.rank()];
        for &axis in axes {
            match shape.axis(axis) {
                None => return expected(op, format!("axes of {shape}"), axis),
                Some(axis) if reduced[axis] => return expected(op, "each axis once", format!("axis {axis} twice")),
                Some(axis) => reduced[axis] = true,
            }
        }
        Ok(Axes { reduced, keep_dim })
    }

    /// The shape of the result; `[1]` if no axis is left.
    pub(super) fn infer(&self, op: &'static str, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(op, inputs)?;
        let shape = &inputs[0].shape;
        if shape.rank() != self.reduced.len() {
            return expected(op, format!("{} dimension(s)", self.reduced.len()), shape);
        }
        let mut dims: Vec<Dim> = Vec::with_capacity(shape.rank());
        for (&dim, &reduced) in shape.0.iter().zip(&self.reduced) {
            match (reduced, self.keep_dim) {
                (false, _) => dims.push(dim),
                (true, true) => dims.push(Dim::Fixed(1)),
                (true, false) => {}
            }
        }
        if dims.is_empty() {
            dims.push(Dim::Fixed(1));
        }
        Ok(vec![Signature::float(Shape(dims))])
    }

    /// The ONNX form, for reductions that have the axes as an input.
    pub(super) fn onnx(&self, node: &mut OnnxNode<'_, '_>, op: &'static str) {
        let axes: Vec<i64> = (0..).zip(&self.reduced).filter(|(_, reduced)| **reduced).map(|(axis, _)| axis).collect();
        let (x, axes) = (node.input(0), node.ints(&axes));
        let y = node.emit(op, &[&x, &axes], vec![("keepdims", OnnxAttribute::Int(i64::from(self.keep_dim)))]);
        // If no axis is left, ONNX has no dimension and we have one.
        node.finish_reshaped(0, &y);
    }

    /// The number of elements that become one.
    pub(super) fn count(&self, inputs: &Inputs<'_>) -> usize {
        (0..self.reduced.len()).filter(|&axis| self.reduced[axis]).map(|axis| inputs.size(0, axis)).product()
    }

    /// Calls `visit` with every run of the input and the range in the result that it belongs to: one element, or as many as the
    /// run has.
    pub(super) fn for_each_run(&self, inputs: &Inputs<'_>, visit: impl FnMut(Range<usize>, Range<usize>)) {
        let rank = self.reduced.len();
        let run_is_reduced = self.reduced.last().copied().unwrap_or(true);
        let tail = self.reduced.iter().rposition(|&reduced| reduced != run_is_reduced).map_or(0, |axis| axis + 1);
        let run = inputs.extent(0, tail..rank);
        let output_run = if run_is_reduced { 1 } else { run };
        RunVisitor { axes: self, inputs, visit, tail, run, output_run, position: 0 }.descend(0, 0);
    }
}

struct RunVisitor<'a, V> {
    axes: &'a Axes,
    inputs: &'a Inputs<'a>,
    visit: V,
    /// The first axis of a run.
    tail: usize,
    run: usize,
    output_run: usize,
    /// Where the next run starts in the input.
    position: usize,
}

impl<V: FnMut(Range<usize>, Range<usize>)> RunVisitor<'_, V> {
    /// Visits all runs from `axis` on; `output` is the position in the result that the axes before it select.
    fn descend(&mut self, axis: usize, output: usize) {
        if axis == self.tail {
            (self.visit)(self.position..self.position + self.run, output..output + self.output_run);
            self.position += self.run;
            return;
        }
        let reduced = &self.axes.reduced;
        let stride: usize = match reduced[axis] {
            true => 0,
            false => (axis + 1..reduced.len()).filter(|&a| !reduced[a]).map(|a| self.inputs.size(0, a)).product(),
        };
        for i in 0..self.inputs.size(0, axis) {
            self.descend(axis + 1, output + i * stride);
        }
    }
}
