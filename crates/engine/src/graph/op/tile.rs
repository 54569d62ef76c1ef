//! Repeats x along its dimensions.

use serde::{Deserialize, Serialize};

use super::size_inputs::{Size, SizeInputs};
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
    /// Which repetitions are the values of further inputs.
    #[serde(default, skip_serializing_if = "SizeInputs::is_empty")]
    sizes: SizeInputs,
}

impl Net {
    /// Repeats x `times[i]` times along dimension i, both aligned at the right.
    pub fn tile(&mut self, x: Var, times: &[usize]) -> Result<Var> {
        self.tile_by(x, &times.iter().map(|&times| Size::Known(times as i64)).collect::<Vec<_>>())
    }

    /// Repeats x along its dimensions; some repetitions are the values of variables.
    pub fn tile_by(&mut self, x: Var, times: &[Size]) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        let (times, sizes, inputs) = SizeInputs::split(x, times);
        let Ok(times) = times.iter().map(|&times| usize::try_from(times)).collect::<Result<Vec<_>, _>>() else {
            return expected("tile", "to repeat at least once", format!("{times:?}"));
        };
        self.append_one("tile", Tile { times, integers, sizes }, &inputs)
    }
}

impl Tile {
    fn list(&self) -> Vec<i64> {
        self.times.iter().map(|&times| times as i64).collect()
    }

    /// The axis of x that an axis of the result corresponds to.
    fn own_axis(axis: usize, rank: usize, x_rank: usize) -> Option<usize> {
        (axis + x_rank).checked_sub(rank)
    }

    /// The signature of the result; `None` repeats as often as is known only when the program runs.
    fn tiled(&self, inputs: &[Signature], times: &[Option<i64>]) -> Result<Vec<Signature>> {
        let x = &inputs[0].shape;
        let rank = x.rank().max(times.len());
        if times.iter().any(|times| times.is_some_and(|times| times < 1)) {
            return expected(self.name(), "to repeat at least once", format!("{:?}", self.times));
        }
        let dims = (0..rank).map(|axis| {
            let times = (axis + times.len()).checked_sub(rank).map_or(Some(1), |i| times[i]);
            match (times, Tile::own_axis(axis, rank, x.rank())) {
                (None, _) => Dim::Unknown,
                (Some(times), None) => Dim::Fixed(times as usize),
                (Some(times), Some(own)) => x.0[own].times(times as usize),
            }
        });
        let outputs = view::moved(self.name(), &inputs[..1], Shape(dims.collect()))?;
        view::expect_tensors(self.name(), &outputs)?;
        Ok(outputs)
    }

    fn view(&self, inputs: &Inputs<'_>) -> View {
        let (x_rank, rank) = (inputs.rank(0), inputs.output_rank(0));
        let mut view = View::new(0);
        for axis in (0..rank).rev() {
            let mut times = inputs.output_size(0, axis);
            if let Some(own) = Tile::own_axis(axis, rank, x_rank) {
                let size = inputs.size(0, own);
                view.push(size, inputs.extent(0, own + 1..x_rank));
                times /= size.max(1);
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
        self.tiled(inputs, &self.sizes.unknown_in(&self.list()))
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        let times: Vec<Option<i64>> = self.sizes.read(&self.list(), values).into_iter().map(Some).collect();
        self.tiled(inputs, &times)
    }

    fn is_sized_by(&self, input: usize) -> bool {
        input > 0
    }

    fn has_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        self.view(inputs).forward(inputs, outputs, self.integers)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        self.view(inputs).backward(inputs, gradients)
    }
}
