//! A range of some dimensions.
//!
//! The batch dimension cannot be sliced: the dataset decides what a batch contains, and its size is not known here.

use serde::{Deserialize, Serialize};

use super::view::{self, View};
use super::{Operator, Signature, expected};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::Dim;

/// An end at or above this means "to the end", whatever the dimension: PaddlePaddle users write the largest 32-bit integer.
const TO_THE_END: i64 = i32::MAX as i64;

/// `starts[i]..ends[i]` of dimension `axes[i]`, and all of the other dimensions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The dimensions; negative ones count from the end.
    pub axes: Vec<i64>,
    /// Where their ranges start; negative ones count from the end.
    pub starts: Vec<i64>,
    /// Where their ranges end; negative ones count from the end, too large ones mean the end.
    pub ends: Vec<i64>,
    integers: bool,
}

impl Net {
    /// `starts[i]..ends[i]` of dimension `axes[i]`. All three count from the end if negative, and a range that is too long ends
    /// with the dimension.
    pub fn slice(&mut self, x: Var, axes: &[i64], starts: &[i64], ends: &[i64]) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        let op = Slice { axes: axes.to_vec(), starts: starts.to_vec(), ends: ends.to_vec(), integers };
        self.append_one("slice", op, &[x])
    }
}

impl Slice {
    /// The range of a dimension of this size; `rank` resolves axes that count from the end.
    fn range(&self, axis: usize, rank: usize, size: usize) -> (usize, usize) {
        let own = |&named: &i64| if named < 0 { named + rank as i64 } else { named } == axis as i64;
        let Some(i) = self.axes.iter().position(own) else { return (0, size) };
        let place = |at: i64| (if at < 0 { at.saturating_add(size as i64) } else { at }).clamp(0, size as i64) as usize;
        (place(self.starts[i]), place(self.ends[i]))
    }

    fn view(&self, inputs: &Inputs<'_>) -> View {
        let rank = inputs.rank(0);
        let range = |axis: usize| self.range(axis, rank, inputs.size(0, axis));
        let step = |axis: usize| inputs.extent(0, axis + 1..rank);
        let mut view = View::new((0..rank).map(|axis| range(axis).0 * step(axis)).sum());
        for axis in (0..rank).rev() {
            let (start, end) = range(axis);
            view.push(end - start, step(axis));
        }
        view
    }
}

impl Operator for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let mut shape = inputs[0].shape.clone();
        if self.axes.len() != self.starts.len() || self.axes.len() != self.ends.len() {
            let got = format!("{} axes, {} starts, {} ends", self.axes.len(), self.starts.len(), self.ends.len());
            return expected(self.name(), "a start and an end for each axis", got);
        }
        let rank = shape.rank();
        let mut seen = vec![false; rank];
        for (i, &named) in self.axes.iter().enumerate() {
            let Some(axis) = shape.axis(named).filter(|&axis| !std::mem::replace(&mut seen[axis], true)) else {
                return expected(
                    self.name(),
                    format!("different axes of {}", inputs[0].shape),
                    format!("{:?}", self.axes),
                );
            };
            let (start, end) = (self.starts[i], self.ends[i]);
            match shape.0[axis] {
                Dim::PerRow(_) if start == 0 && end >= TO_THE_END => {}
                Dim::PerRow(_) => {
                    let wanted = format!("the whole batch (0..{TO_THE_END}) along axis {named}, which cannot be sliced");
                    return expected(self.name(), wanted, format!("{start}..{end}"));
                }
                Dim::Fixed(size) => {
                    let (from, to) = self.range(axis, rank, size);
                    if from >= to {
                        let wanted = format!("a range with elements along axis {named} of {}", inputs[0].shape);
                        return expected(self.name(), wanted, format!("{start}..{end}"));
                    }
                    shape.0[axis] = Dim::Fixed(to - from);
                }
            }
        }
        view::moved(self.name(), inputs, shape)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        self.view(inputs).forward(inputs, outputs, self.integers)
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        self.view(inputs).backward(inputs, gradients)
    }
}
