//! Classes drawn at random, by their weights.

use openfleet_core::key::mix;
use serde::{Deserialize, Serialize};

use super::{Operator, Signature, expect_floats, expected};
use crate::error::{Error, Result};
use crate::graph::{Net, Var};
use crate::memory::{Gradients, Inputs, Outputs};
use crate::value::{DType, Dim, Shape};

/// Classes drawn by weight. Input: weights `[C]` or `[N, C]`, not negative. The result: `[count]` or `[N, count]` integers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Multinomial {
    /// How many classes are drawn of each row.
    pub count: usize,
    /// Whether a class can be drawn more than once.
    pub replacement: bool,
}

impl Net {
    /// `count` classes of each row of weights `[C]` or `[N, C]`, drawn at random by weight, others in every step.
    pub fn multinomial(&mut self, weights: Var, count: usize, replacement: bool) -> Result<Var> {
        self.append_one("multinomial", Multinomial { count, replacement }, &[weights])
    }
}

impl Operator for Multinomial {
    fn name(&self) -> &'static str {
        "multinomial"
    }

    fn infer(&self, inputs: &[Signature]) -> Result<Vec<Signature>> {
        expect_floats(self.name(), inputs)?;
        let shape = &inputs[0].shape;
        let drawn = Dim::Fixed(self.count);
        let dims = match shape.0[..] {
            _ if self.count == 0 => return expected(self.name(), "to draw at least once", self.count),
            [_] => vec![drawn],
            [rows, _] => vec![rows, drawn],
            _ => return expected(self.name(), "weights [C] or [N, C]", shape),
        };
        if let Some(&Dim::Fixed(classes)) = shape.0.last()
            && (classes == 0 || (!self.replacement && classes < self.count))
        {
            let wanted = format!("at least {} classes, without replacement", self.count);
            return expected(self.name(), wanted, classes);
        }
        Ok(vec![Signature { shape: Shape(dims), dtype: DType::I64, ragged: false }])
    }

    fn has_gradient(&self, _: usize) -> bool {
        false
    }

    fn forward(&self, inputs: &Inputs<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let classes = inputs.columns(0);
        let rows = inputs.floats(0).chunks_exact(classes).zip(outputs.ints(0).chunks_exact_mut(self.count));
        for (row, (weights, drawn)) in rows.enumerate() {
            let positive = weights.iter().filter(|&&weight| weight > 0.0).count();
            let enough = if self.replacement { 1 } else { self.count };
            if weights.iter().any(|weight| !weight.is_finite() || *weight < 0.0) || positive < enough {
                return Err(Error::Value {
                    op: self.name(),
                    what: "a row of weights".into(),
                    expected: format!("finite weights that are not negative, at least {enough} of them above 0"),
                    got: format!("{positive} above 0 in {:?}", &weights[..classes.min(8)]),
                    row,
                });
            }
            for at in 0..self.count {
                let (before, rest) = drawn.split_at_mut(at);
                let left = |class: usize| match self.replacement || !before.contains(&(class as u64)) {
                    true => f64::from(weights[class]),
                    false => 0.0,
                };
                let total: f64 = (0..classes).map(left).sum();
                let number = mix(inputs.seed() ^ mix((row * self.count + at) as u64));
                // 53 bits fill a double.
                let mut place = (number >> 11) as f64 / (1u64 << 53) as f64 * total;
                let mut chosen = None;
                for class in (0..classes).filter(|&class| left(class) > 0.0) {
                    chosen = Some(class);
                    place -= left(class);
                    if place < 0.0 {
                        break;
                    }
                }
                rest[0] = chosen.unwrap_or(0) as u64;
            }
        }
        Ok(())
    }

    fn backward(&self, _: &Inputs<'_>, _: &mut Gradients<'_>) -> Result<()> {
        Ok(())
    }
}
