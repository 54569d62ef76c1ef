//! Repeats x along its dimensions.

use serde::{Deserialize, Serialize};

use super::view::{self, View};
use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// Repeats x `times[i]` times along dimension i, both aligned at the right.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tile {
    /// The repetitions per dimension. If there are more than x has dimensions, x gets leading dimensions of size 1.
    pub times: Vec<usize>,
    integers: bool,
}

impl Net {
    /// Repeats x `times[i]` times along dimension i, both aligned at the right.
    pub fn tile(&mut self, x: Var, times: &[usize]) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append_one("tile", Tile { times: times.to_vec(), integers }, &[x])
    }
}

impl Tile {
    /// The repetitions along an axis of the result, and the axis of x that it corresponds to.
    fn at(&self, axis: usize, rank: usize, x_rank: usize) -> (usize, Option<usize>) {
        let times = (axis + self.times.len()).checked_sub(rank).map_or(1, |i| self.times[i]);
        (times, (axis + x_rank).checked_sub(rank))
    }

    fn view(&self, inputs: &Inputs<'_>) -> View {
        let x_rank = inputs.rank(0);
        let rank = x_rank.max(self.times.len());
        let mut view = View::new(0);
        for axis in (0..rank).rev() {
            let (times, own) = self.at(axis, rank, x_rank);
            if let Some(own) = own {
                view.push(inputs.size(0, own), inputs.extent(0, own + 1..x_rank));
            }
            view.push(times, 0);
        }
        view
    }
}

impl Operator for Tile {
    fn name(&self) -> &'static str {
        "tile"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let x = &inputs[0].shape;
        let rank = x.rank().max(self.times.len());
        if self.times.contains(&0) {
            return expected(self.name(), "to repeat at least once", format!("{:?}", self.times));
        }
        let dims = (0..rank).map(|axis| match self.at(axis, rank, x.rank()) {
            (times, None) => Dim::Fixed(times),
            (times, Some(own)) => match x.0[own] {
                Dim::Fixed(size) => Dim::Fixed(times * size),
                Dim::PerRow(size) => Dim::PerRow(times * size),
            },
        });
        let outputs = view::moved(self.name(), inputs, Shape(dims.collect()))?;
        view::expect_tensors(self.name(), &outputs)?;
        Ok(outputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        self.view(inputs).forward(inputs, outputs, self.integers)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        self.view(inputs).backward(inputs, gradients)
    }
}
