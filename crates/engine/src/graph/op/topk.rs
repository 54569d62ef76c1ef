//! The k greatest (or least) elements of each row, in order, and their positions.
//!
//! Among equal elements the one with the lower position comes first; NaN comes last. Gradients flow only to the positions that
//! the elements came from.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, expected, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim};

/// The k greatest or least elements of each row. Input: x [.., N]. Outputs: values and positions, [.., k].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TopK {
    /// The number of elements.
    pub k: usize,
    /// Whether the greatest elements are returned; otherwise the least.
    pub largest: bool,
}

impl Net {
    /// The `k` greatest or least elements along the last axis, in order, and their positions there as integers.
    pub fn topk(&mut self, x: Var, k: usize, largest: bool) -> Result<(Var, Var)> {
        let outputs = self.append("topk", TopK { k, largest }, &[x])?;
        Ok((outputs[0], outputs[1]))
    }
}

impl TopK {
    /// Which of two elements comes first.
    fn order(&self, row: &[f32], a: u64, b: u64) -> Ordering {
        let (x, y) = (row[a as usize], row[b as usize]);
        let by_value = match (x.is_nan(), y.is_nan()) {
            (false, false) if self.largest => y.partial_cmp(&x).unwrap_or(Ordering::Equal),
            (false, false) => x.partial_cmp(&y).unwrap_or(Ordering::Equal),
            (x, y) => x.cmp(&y),
        };
        by_value.then(a.cmp(&b))
    }

    /// The positions of the first k elements of a row, in order. Insertion into k positions allocates nothing, and k is small.
    fn positions(&self, row: &[f32], positions: &mut [u64]) {
        let mut found = 0;
        for at in 0..row.len() as u64 {
            let mut to = found;
            while to > 0 && self.order(row, at, positions[to - 1]) == Ordering::Less {
                if to < positions.len() {
                    positions[to] = positions[to - 1];
                }
                to -= 1;
            }
            if to < positions.len() {
                positions[to] = at;
                found = positions.len().min(found + 1);
            }
        }
    }
}

impl Operator for TopK {
    fn name(&self) -> &'static str {
        "topk"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        view::expect_tensors(self.name(), inputs)?;
        let mut shape = inputs[0].shape.clone();
        match shape.0.last_mut() {
            Some(last @ &mut Dim::Fixed(n)) if (1..=n).contains(&self.k) => *last = Dim::Fixed(self.k),
            _ => {
                let wanted = format!("a fixed last dimension of at least k = {} elements, k from 1", self.k);
                return expected(self.name(), wanted, &inputs[0].shape);
            }
        }
        let positions = Signature { shape: shape.clone(), dtype: DType::I64, ragged: false };
        Ok(vec![Signature::float(shape), positions])
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let (x, n) = (inputs.floats(0), inputs.columns(0));
        let [values, positions] = outputs.all() else { return Ok(()) };
        let (values, positions) = (values.floats.chunks_exact_mut(self.k), positions.ints.chunks_exact_mut(self.k));
        for ((row, values), positions) in x.chunks_exact(n).zip(values).zip(positions) {
            self.positions(row, positions);
            values.iter_mut().zip(&*positions).for_each(|(value, &at)| *value = row[at as usize]);
        }
        Ok(())
    }

    fn backward(&self, inputs: &Inputs<'_>, gradients: &mut Gradients<'_>) -> Result<()> {
        let Some(gradient) = gradients.of(0) else { return Ok(()) };
        let n = inputs.columns(0);
        let (positions, dy) = (inputs.output_ints(1), inputs.output_gradient(0));
        let dx = gradient.accumulate().chunks_exact_mut(n);
        for ((dx, positions), dy) in dx.zip(positions.chunks_exact(self.k)).zip(dy.chunks_exact(self.k)) {
            positions.iter().zip(dy).for_each(|(&at, dy)| dx[at as usize] += dy);
        }
        Ok(())
    }
}
