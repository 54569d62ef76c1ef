//! Splits a tensor into parts along an axis: the inverse of `concat`.
//!
//! Seen from the axis, x is `outer x (axis and what follows)`, and each part takes one run per outer index.

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expected, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{Dim, Shape};

/// Splits into parts of the given sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Split {
    /// The axis, counted from the front.
    pub axis: usize,
    /// The size of each part along the axis.
    pub sections: Vec<usize>,
    integers: bool,
}

impl Net {
    /// Splits into `parts` equal parts along an axis, which may count from the end.
    pub fn split(&mut self, x: Var, parts: usize, axis: i64) -> Result<Vec<Var>> {
        let (axis, size) = fixed_axis(self.shape(x), axis)?;
        if parts == 0 || size % parts != 0 {
            return expected("split", format!("a number of parts that divides {size}"), parts);
        }
        self.split_into(x, axis, vec![size / parts; parts])
    }

    /// Splits into parts of the given sizes along an axis, which may count from the end; one -1 takes the rest.
    pub fn split_sections(&mut self, x: Var, sections: &[i64], axis: i64) -> Result<Vec<Var>> {
        let (axis, size) = fixed_axis(self.shape(x), axis)?;
        let wrong =
            || expected("split", format!("sizes that add up to {size}, at most one of them -1"), format!("{sections:?}"));
        let (mut known, mut open) = (0usize, 0);
        for &section in sections {
            match usize::try_from(section) {
                Ok(section) => known = known.saturating_add(section),
                Err(_) if section == -1 => open += 1,
                Err(_) => return wrong(),
            }
        }
        let fits = if open == 1 { known <= size } else { open == 0 && known == size };
        if !fits || sections.is_empty() {
            return wrong();
        }
        let sections = sections.iter().map(|&section| usize::try_from(section).unwrap_or(size - known)).collect();
        self.split_into(x, axis, sections)
    }

    fn split_into(&mut self, x: Var, axis: usize, sections: Vec<usize>) -> Result<Vec<Var>> {
        let integers = !self.main.variable(x).dtype.is_float();
        self.append("split", Split { axis, sections, integers }, &[x])
    }
}

fn fixed_axis(shape: &Shape, axis: i64) -> Result<(usize, usize)> {
    match shape.axis(axis).map(|axis| (axis, shape.0[axis])) {
        Some((axis, Dim::Fixed(size))) => Ok((axis, size)),
        Some((_, Dim::PerRow(_) | Dim::Unknown)) => expected("split", "an axis other than the batch, whose size is not known", axis),
        None => expected("split", format!("an axis of {shape}"), axis),
    }
}

impl Split {
    /// The number of elements per outer index: of x, and of one unit along the axis.
    fn run(&self, inputs: &Inputs<'_>) -> (usize, usize) {
        let rank = inputs.rank(0);
        (inputs.extent(0, self.axis..rank), inputs.extent(0, self.axis + 1..rank))
    }
}

impl Operator for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        let x = &inputs[0].shape;
        let mut outputs = Vec::with_capacity(self.sections.len());
        for &section in &self.sections {
            let mut shape = x.clone();
            shape.0[self.axis] = Dim::Fixed(section);
            outputs.extend(view::moved(self.name(), inputs, shape)?);
        }
        Ok(outputs)
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (total, unit) = self.run(inputs);
        let mut start = 0;
        for (part, &section) in self.sections.iter().enumerate() {
            let run = section * unit;
            if self.integers {
                cut(inputs.ints(0), outputs.ints(part), start, run, total);
            } else {
                cut(inputs.floats(0), outputs.floats(part), start, run, total);
            }
            start += run;
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let (total, unit) = self.run(inputs);
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let (own, keep) = gradient.begin();
        if total == 0 {
            return Ok(());
        }
        let mut start = 0;
        for (part, &section) in self.sections.iter().enumerate() {
            let run = section * unit;
            let part_gradient = inputs.output_gradient(part);
            for (row, own) in own.chunks_exact_mut(total).enumerate() {
                let own = &mut own[start..start + run];
                // A part without a gradient contributes nothing.
                let from = part_gradient.get(row * run..(row + 1) * run);
                match (from, keep == 0.0) {
                    (Some(from), true) => own.copy_from_slice(from),
                    (Some(from), false) => own.iter_mut().zip(from).for_each(|(own, g)| *own += g),
                    (None, true) => own.fill(0.0),
                    (None, false) => {}
                }
            }
            start += run;
        }
        Ok(())
    }
}

/// Copies one run out of every `total` elements.
fn cut<T: Copy>(from: &[T], to: &mut [T], start: usize, run: usize, total: usize) {
    if run == 0 {
        return;
    }
    for (from, to) in from.chunks_exact(total).zip(to.chunks_exact_mut(run)) {
        to.copy_from_slice(&from[start..start + run]);
    }
}
