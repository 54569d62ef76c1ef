//! A range of some dimensions.
//!
//! A slice of the batch has a size that is known only when the program runs.

use serde::{Deserialize, Serialize};

use super::size_inputs::{Size, SizeInputs};
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
    /// Which starts, and after them which ends, are the values of further inputs.
    #[serde(default, skip_serializing_if = "SizeInputs::is_empty")]
    sizes: SizeInputs,
}

impl Net {
    /// `starts[i]..ends[i]` of dimension `axes[i]`. All three count from the end if negative, and a range that is too long ends
    /// with the dimension.
    pub fn slice(&mut self, x: Var, axes: &[i64], starts: &[i64], ends: &[i64]) -> Result<Var> {
        let known = |list: &[i64]| list.iter().map(|&at| Size::Known(at)).collect::<Vec<_>>();
        self.slice_at(x, axes, &known(starts), &known(ends))
    }

    /// The same with starts and ends of which some are the values of variables.
    pub fn slice_at(&mut self, x: Var, axes: &[i64], starts: &[Size], ends: &[Size]) -> Result<Var> {
        let integers = !self.main.variable(x).dtype.is_float();
        let (mut list, sizes, inputs) = SizeInputs::split(x, &[starts, ends].concat());
        let ends = list.split_off(starts.len());
        self.append_one("slice", Slice { axes: axes.to_vec(), starts: list, ends, integers, sizes }, &inputs)
    }
}

impl Slice {
    /// The range of a dimension of this size; `rank` resolves axes that count from the end.
    fn range(&self, bounds: &Bounds<'_>, axis: usize, rank: usize, size: usize) -> (usize, usize) {
        let own = |&named: &i64| if named < 0 { named + rank as i64 } else { named } == axis as i64;
        let Some(i) = self.axes.iter().position(own) else { return (0, size) };
        let place = |at: i64| (if at < 0 { at.saturating_add(size as i64) } else { at }).clamp(0, size as i64) as usize;
        let (start, end) = bounds.at(i);
        (place(start), place(end))
    }

    /// The signature of the result; without bounds, the sizes of the axes are unknown.
    fn sliced(&self, inputs: &[Signature], bounds: Option<&Bounds<'_>>) -> Result<Vec<Signature>> {
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
            let Some(bounds) = bounds else {
                shape.0[axis] = Dim::Unknown;
                continue;
            };
            let (start, end) = bounds.at(i);
            shape.0[axis] = match shape.0[axis] {
                dim @ Dim::PerRow(_) if start == 0 && end >= TO_THE_END => dim,
                Dim::PerRow(_) | Dim::Unknown => Dim::Unknown,
                Dim::Fixed(size) => {
                    let (from, to) = self.range(bounds, axis, rank, size);
                    if from >= to {
                        let wanted = format!("a range with elements along axis {named} of {}", inputs[0].shape);
                        return expected(self.name(), wanted, format!("{start}..{end}"));
                    }
                    Dim::Fixed(to - from)
                }
            };
        }
        view::moved(self.name(), &inputs[..1], shape)
    }

    fn bounds<'a>(&'a self, inputs: &Inputs<'_>) -> Bounds<'a> {
        match self.sizes.is_empty() {
            true => Bounds::Known(&self.starts, &self.ends),
            false => Bounds::Read(self.sizes.read(&[self.starts.as_slice(), &self.ends].concat(), inputs)),
        }
    }

    fn view(&self, inputs: &Inputs<'_>) -> View {
        let rank = inputs.rank(0);
        let bounds = self.bounds(inputs);
        let range = |axis: usize| self.range(&bounds, axis, rank, inputs.size(0, axis));
        let step = |axis: usize| inputs.extent(0, axis + 1..rank);
        let mut view = View::new((0..rank).map(|axis| range(axis).0 * step(axis)).sum());
        for axis in (0..rank).rev() {
            let (start, end) = range(axis);
            view.push(end - start, step(axis));
        }
        view
    }
}

/// The starts and ends of a slice.
enum Bounds<'a> {
    /// Known before the program runs.
    Known(&'a [i64], &'a [i64]),
    /// Partly values of inputs: the starts, then the ends.
    Read(Vec<i64>),
}

impl Bounds<'_> {
    fn at(&self, i: usize) -> (i64, i64) {
        match self {
            Bounds::Known(starts, ends) => (starts[i], ends[i]),
            Bounds::Read(list) => (list[i], list[list.len() / 2 + i]),
        }
    }
}

impl Operator for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        match self.sizes.is_empty() {
            true => self.sliced(inputs, Some(&Bounds::Known(&self.starts, &self.ends))),
            false => self.sliced(inputs, None),
        }
    }

    fn infer_at_run(&self, inputs: &[Signature], values: &Inputs<'_>) -> Result<Vec<Signature>> {
        self.sliced(inputs, Some(&self.bounds(values)))
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
