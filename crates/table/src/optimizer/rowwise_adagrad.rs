//! `G += mean(g^2)` over the D weights of a row, `w -= rate / (sqrt(G) + epsilon) * g`: the exact row-wise AdaGrad of FBGEMM
//! and torchrec (`EXACT_ROWWISE_ADAGRAD`).
//!
//! One float of state per row instead of one per weight. It is the only rule whose elements depend on each other, so it is
//! written for a whole row and not for an element. A dense parameter has no rows: where its blocks begin depends on the number
//! of servers, so a mean over a block would too. Programs that choose this rule train their dense parameters with AdaGrad
//! ([`RowwiseAdagrad::for_dense`]).

use serde::{Deserialize, Serialize};

use super::{Adagrad, Weights};
use crate::error::{Result, require};
use crate::regularizer::Regularizer;

/// A learning rate per row that shrinks with the sum of its mean squared gradients; one float per row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RowwiseAdagrad {
    /// Keeps the first steps finite.
    pub epsilon: f64,
    /// Initial value of `G`.
    pub initial_accumulator: f64,
}

impl Default for RowwiseAdagrad {
    fn default() -> Self {
        RowwiseAdagrad { epsilon: 1e-8, initial_accumulator: 0.0 }
    }
}

impl RowwiseAdagrad {
    /// The rule for dense parameters of the same program: one `G` per weight.
    pub fn for_dense(&self) -> Adagrad {
        Adagrad { epsilon: self.epsilon, initial_accumulator: self.initial_accumulator }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let owner = "rowwise_adagrad";
        require(self.epsilon >= 0.0, owner, "epsilon", "a number not below 0", self.epsilon)?;
        let start = self.initial_accumulator;
        require(start >= 0.0, owner, "initial_accumulator", "a number not below 0", start)?;
        require(self.epsilon > 0.0 || start > 0.0, owner, "epsilon", "above 0 where `G` starts at 0", self.epsilon)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    rate: f32,
    epsilon: f32,
}

impl Update {
    pub(crate) fn new(rule: &RowwiseAdagrad, rate: f32) -> Self {
        Update { rate, epsilon: rule.epsilon as f32 }
    }

    /// The factor of a row's gradient, after its mean square was added to `squares`.
    #[inline(always)]
    pub(crate) fn factor(&self, squares: &mut f32, sum_of_squares: f32, dim: usize) -> f32 {
        *squares += sum_of_squares / dim as f32;
        self.rate / (squares.sqrt() + self.epsilon)
    }
}

/// Lanes of the sum: their order is fixed, so that the bits do not depend on the machine.
const LANES: usize = 8;

/// The sum of the squares of a row's gradient, with what the regularizer adds to it.
#[inline(always)]
pub(crate) fn sum_of_squares(regularizer: Option<&Regularizer>, weights: &impl Weights, gradient: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let whole = gradient.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let squares = squares::<LANES>(regularizer, weights, gradient, at);
        sums.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
    }
    for at in whole..gradient.len() {
        sums[at - whole] += squares::<1>(regularizer, weights, gradient, at)[0];
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

#[inline(always)]
fn squares<const LANES: usize>(
    regularizer: Option<&Regularizer>,
    weights: &impl Weights,
    gradient: &[f32],
    at: usize,
) -> [f32; LANES] {
    super::regularized::<LANES>(regularizer, weights, gradient, at).1.map(|gradient| gradient * gradient)
}
