//! Lamb (You et al. 2020) in PaddlePaddle's form: Adam's direction with weight decay, as long as the parameter itself:
//!
//! ```text
//! m = beta1 * m + (1 - beta1) * g
//! v = beta2 * v + (1 - beta2) * g^2
//! r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay * w
//! w -= rate * |w| / |r| * r                       the ratio is 1 if one of the norms is 0
//! ```
//!
//! Without weight decay the ratio is 1 too, unless `always_adapt` is set: PaddlePaddle's choice for biases and norms.
//!
//! The norms are those of a whole dense parameter, so a parameter is never divided between servers under this rule
//! ([`Optimizer::needs_whole_parameters`](super::Optimizer::needs_whole_parameters)). No process has all rows of a sparse
//! table: there the norms are those of each pushed row, as in `LAMB` of FBGEMM and torchrec (of its short and of its long part
//! with the ctr accessor). PaddlePaddle takes the norm of the whole table, in one process.

use serde::{Deserialize, Serialize};

use super::{Weights, without_subnormals};
use crate::error::{Result, require};
use crate::regularizer::Regularizer;

/// Adam with steps in proportion to the norm of a parameter, or of a row; two slots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Lamb {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Keeps the quotient finite.
    pub epsilon: f64,
    /// The share of the weights that is added to the direction.
    pub weight_decay: f64,
    /// Whether to use the ratio of the norms without weight decay too.
    pub always_adapt: bool,
}

impl Default for Lamb {
    fn default() -> Self {
        Lamb { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01, always_adapt: false }
    }
}

impl Lamb {
    pub(crate) fn validate(&self) -> Result<()> {
        super::check_moments("lamb", self.beta1, self.beta2, self.epsilon)?;
        let decay = self.weight_decay;
        require(decay.is_finite() && decay >= 0.0, "lamb", "weight_decay", "a number not below 0", decay)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    rate: f32,
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// What the moments are divided by.
    correction1: f32,
    correction2: f32,
    epsilon: f32,
    weight_decay: f32,
    adapts: bool,
}

/// The squared norms of the weights and of the direction. In lanes, so that the order of the sums does not depend on the
/// machine, and in double precision, because a dense parameter can have millions of weights.
#[derive(Debug, Default)]
pub(crate) struct Norms {
    weights: [f64; LANES],
    direction: [f64; LANES],
}

const LANES: usize = 8;

impl Update {
    pub(crate) fn new(rule: &Lamb, rate: f32, step: u64) -> Self {
        let t = step.max(1) as f64;
        Update {
            rate,
            beta1: rule.beta1 as f32,
            one_minus_beta1: (1.0 - rule.beta1) as f32,
            beta2: rule.beta2 as f32,
            one_minus_beta2: (1.0 - rule.beta2) as f32,
            correction1: (1.0 - rule.beta1.powf(t)) as f32,
            correction2: (1.0 - rule.beta2.powf(t)) as f32,
            epsilon: rule.epsilon as f32,
            weight_decay: rule.weight_decay as f32,
            adapts: rule.weight_decay > 0.0 || rule.always_adapt,
        }
    }

    /// Updates a row, or a whole parameter: first its moments and the norms, then its weights.
    #[inline(always)]
    pub(crate) fn apply(
        &self,
        regularizer: Option<&Regularizer>,
        weights: &mut impl Weights,
        state: &mut [f32],
        gradient: &[f32],
    ) {
        let (m, v) = state.split_at_mut(gradient.len());
        let whole = gradient.len() / LANES * LANES;
        let mut norms = Norms::default();
        for at in (0..whole).step_by(LANES) {
            self.measure::<LANES>(regularizer, weights, m, v, gradient, at, &mut norms);
        }
        for at in whole..gradient.len() {
            self.measure::<1>(regularizer, weights, m, v, gradient, at, &mut norms);
        }
        let factor = self.factor(&norms);
        for at in (0..whole).step_by(LANES) {
            self.descend::<LANES>(weights, m, v, at, factor);
        }
        for at in whole..gradient.len() {
            self.descend::<1>(weights, m, v, at, factor);
        }
    }

    /// Updates the moments of `WIDTH` weights, and adds to the norms.
    #[inline(always)]
    fn measure<const WIDTH: usize>(
        &self,
        regularizer: Option<&Regularizer>,
        weights: &impl Weights,
        m: &mut [f32],
        v: &mut [f32],
        gradient: &[f32],
        at: usize,
        norms: &mut Norms,
    ) {
        let (w, g) = super::regularized::<WIDTH>(regularizer, weights, gradient, at);
        let (mut new_m, mut new_v) = (super::load::<WIDTH>(m, at), super::load::<WIDTH>(v, at));
        for lane in 0..WIDTH {
            new_m[lane] = without_subnormals(self.beta1 * new_m[lane] + self.one_minus_beta1 * g[lane]);
            new_v[lane] = self.beta2 * new_v[lane] + self.one_minus_beta2 * (g[lane] * g[lane]);
            let direction = f64::from(self.direction(w[lane], new_m[lane], new_v[lane]));
            let weight = f64::from(w[lane]);
            norms.weights[(at + lane) % LANES] += weight * weight;
            norms.direction[(at + lane) % LANES] += direction * direction;
        }
        m[at..at + WIDTH].copy_from_slice(&new_m);
        v[at..at + WIDTH].copy_from_slice(&new_v);
    }

    /// Subtracts `factor` times the direction from `WIDTH` weights.
    #[inline(always)]
    fn descend<const WIDTH: usize>(&self, weights: &mut impl Weights, m: &[f32], v: &[f32], at: usize, factor: f32) {
        let (m, v) = (super::load::<WIDTH>(m, at), super::load::<WIDTH>(v, at));
        let mut w: [f32; WIDTH] = weights.load(at);
        for lane in 0..WIDTH {
            w[lane] -= factor * self.direction(w[lane], m[lane], v[lane]);
        }
        weights.store(at, w);
    }

    #[inline(always)]
    fn direction(&self, weight: f32, m: f32, v: f32) -> f32 {
        (m / self.correction1) / ((v / self.correction2).sqrt() + self.epsilon) + self.weight_decay * weight
    }

    fn factor(&self, norms: &Norms) -> f32 {
        if !self.adapts {
            return self.rate;
        }
        let [weights, direction] = [norms.weights, norms.direction].map(|[a, b, c, d, e, f, g, h]| {
            let sum: f64 = ((a + e) + (c + g)) + ((b + f) + (d + h));
            sum.sqrt()
        });
        let ratio = if weights > 0.0 && direction > 0.0 { weights / direction } else { 1.0 };
        (f64::from(self.rate) * ratio) as f32
    }
}
