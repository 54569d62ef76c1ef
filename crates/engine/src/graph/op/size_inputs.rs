//! Sizes that are values: `reshape(x, [shape(y)[0], 4])`.
//!
//! An op that takes sizes has a list of integers as its attribute. A size that is known only when the program runs is the value of
//! a further input of the op, after its ordinary inputs.

use serde::{Deserialize, Serialize};

use super::expected;
use crate::error::Result;
use crate::graph::Var;
use crate::memory::Inputs;
use crate::value::{Dim, Shape};

/// A size as the caller gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// A number.
    Known(i64),
    /// The value of a variable: one integer.
    Of(Var),
}

/// Which positions of a list of sizes are the values of inputs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeInputs(Vec<usize>);

impl SizeInputs {
    /// The list with 0 for sizes that are values, their positions, and the inputs of the op: `x`, then the variables.
    pub(super) fn split(x: Var, sizes: &[Size]) -> (Vec<i64>, Self, Vec<Var>) {
        let (list, positions, variables) = SizeInputs::split_sizes(sizes);
        (list, positions, std::iter::once(x).chain(variables).collect())
    }

    /// The same for an op without other inputs.
    pub(super) fn split_sizes(sizes: &[Size]) -> (Vec<i64>, Self, Vec<Var>) {
        let (mut list, mut positions, mut variables) = (Vec::new(), Vec::new(), Vec::new());
        for (position, &size) in sizes.iter().enumerate() {
            list.push(match size {
                Size::Known(size) => size,
                Size::Of(variable) => {
                    positions.push(position);
                    variables.push(variable);
                    0
                }
            });
        }
        (list, SizeInputs(positions), variables)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The list, with `None` for sizes that are not known yet.
    pub(super) fn unknown_in(&self, list: &[i64]) -> Vec<Option<i64>> {
        let is_known = |position: usize| !self.0.contains(&position);
        list.iter().enumerate().map(|(position, &size)| is_known(position).then_some(size)).collect()
    }

    /// The shape of these sizes, of which a negative one is the batch.
    pub(super) fn shape(&self, list: &[i64]) -> Shape {
        let mut shape = Shape::of(list);
        self.0.iter().for_each(|&position| shape.0[position] = Dim::Unknown);
        shape
    }

    /// A shape made by [`shape`](Self::shape), when the program runs.
    pub(super) fn shape_at_run(&self, op: &'static str, shape: &Shape, values: &Inputs<'_>) -> Result<Shape> {
        let mut shape = shape.for_rows(values.rows());
        for (&position, size) in self.0.iter().zip(self.values(values)) {
            match usize::try_from(size) {
                Ok(size) => shape.0[position] = Dim::Fixed(size),
                Err(_) => return expected(op, "sizes that are not negative", size),
            }
        }
        Ok(shape)
    }

    /// The values of the op's last inputs, in order.
    fn values<'a>(&self, values: &'a Inputs<'_>) -> impl Iterator<Item = i64> + 'a {
        let first = values.count() - self.0.len();
        (first..values.count()).map(|input| values.ints(input).first().map_or(0, |&size| size as i64))
    }

    /// The list with the values of the op's last inputs.
    pub(super) fn read(&self, list: &[i64], values: &Inputs<'_>) -> Vec<i64> {
        let mut list = list.to_vec();
        for (&position, size) in self.0.iter().zip(self.values(values)) {
            list[position] = size;
        }
        list
    }
}
