//! The update rules: how a gradient changes weights and optimizer state.
//!
//! One rule per file, each the formula of one element (of one row for row-wise AdaGrad and Lamb); only this file knows the memory layout
//! and how elements are vectorised.
//! Dense blocks and sparse rows use the same arithmetic, so a model trains the same wherever its parameters are. A rule does
//! not know the schedule (it gets the current rate), the table, or whether it runs on a server.
//!
//! Layout: `weights` are D floats, or D numbers of 16 bits that are widened before the update and rounded stochastically after it
//! ([`Weights`]); `state` has the rule's slots one after another, D floats each (slot-major), one float for a row-wise rule.
//!
//! Hyper-parameters are f64 and converted to f32 once per call: `1 - 0.999` in f32 has a relative error of 1e-5. No fused
//! multiply-add is used anywhere, so machines with and without it compute the same bits.

mod adadelta;
mod adagrad;
mod adam;
mod adamax;
mod adamw;
mod decayed_adagrad;
mod ftrl;
mod lamb;
mod momentum;
mod rmsprop;
mod rowwise_adagrad;
mod sgd;

pub use adadelta::Adadelta;
pub use adagrad::Adagrad;
pub use adam::Adam;
pub use adamax::Adamax;
pub use adamw::AdamW;
pub use decayed_adagrad::DecayedAdagrad;
pub use ftrl::Ftrl;
pub use lamb::Lamb;
pub use momentum::Momentum;
pub use rmsprop::RmsProp;
pub use rowwise_adagrad::RowwiseAdagrad;
pub use sgd::Sgd;

use multiversion::multiversion;
use openfleet_core::bfloat16;
use serde::{Deserialize, Serialize};

use crate::error::{Result, require};
use crate::regularizer::Regularizer;

/// An update rule with its hyper-parameters; the learning rate comes from a [`Schedule`](crate::Schedule).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// Gradient descent.
    Sgd(Sgd),
    /// Gradient descent with momentum.
    Momentum(Momentum),
    /// A learning rate per weight that shrinks with the sum of squared gradients.
    Adagrad(Adagrad),
    /// A learning rate per row that shrinks with the sum of its mean squared gradients; for sparse rows only.
    RowwiseAdagrad(RowwiseAdagrad),
    /// AdaGrad with a running mean of squared gradients instead of their sum.
    DecayedAdagrad(DecayedAdagrad),
    /// Steps as long as the last ones were.
    Adadelta(Adadelta),
    /// First and second moments with bias correction.
    Adam(Adam),
    /// Adam with decoupled weight decay.
    #[serde(rename = "adamw")]
    AdamW(AdamW),
    /// First moment, divided by a norm that remembers the largest gradient.
    Adamax(Adamax),
    /// Adam with decoupled weight decay, and steps in proportion to the norm of a parameter or row.
    Lamb(Lamb),
    /// A learning rate per weight from a running mean of squared gradients.
    RmsProp(RmsProp),
    /// Follow the regularized leader: weights become exactly zero.
    Ftrl(Ftrl),
}

impl Optimizer {
    /// Number of slots: arrays of state, each of D floats for D weights, or of one float if the rule is row-wise.
    pub fn state_slots(&self) -> usize {
        match self {
            Optimizer::Sgd(_) => 0,
            Optimizer::Momentum(_)
            | Optimizer::Adagrad(_)
            | Optimizer::RowwiseAdagrad(_)
            | Optimizer::DecayedAdagrad(_) => 1,
            Optimizer::Adadelta(_)
            | Optimizer::Adam(_)
            | Optimizer::AdamW(_)
            | Optimizer::Adamax(_)
            | Optimizer::Lamb(_)
            | Optimizer::Ftrl(_) => 2,
            Optimizer::RmsProp(rule) => rule.slots(),
        }
    }

    /// Floats of state that belong to `dim` weights of one row.
    pub fn state_len(&self, dim: usize) -> usize {
        if self.is_rowwise() { dim.min(1) } else { self.state_slots() * dim }
    }

    /// Whether the state belongs to a row instead of to each weight.
    pub fn is_rowwise(&self) -> bool {
        matches!(self, Optimizer::RowwiseAdagrad(_))
    }

    /// Whether an update depends on all weights of a dense parameter, which must then be in one table. On sparse rows such a rule
    /// depends on the weights of a row.
    pub fn needs_whole_parameters(&self) -> bool {
        matches!(self, Optimizer::Lamb(_))
    }

    /// Whether a step moves the rows of a sparse table that are not pushed.
    pub fn moves_every_row(&self) -> bool {
        matches!(self, Optimizer::Adam(rule) if !rule.lazy_mode)
    }

    /// The rule that trains the dense parameters of a program with this rule: this one, unless it is row-wise.
    #[must_use]
    pub fn for_dense(self) -> Self {
        match self {
            Optimizer::RowwiseAdagrad(rule) => Optimizer::Adagrad(rule.for_dense()),
            rule => rule.lazily(),
        }
    }

    /// The rule that trains a dense parameter in place of a sparse table with this rule, so that all rows move as they would there.
    #[must_use]
    pub fn for_dense_rows(self) -> Self {
        match self {
            Optimizer::Adam(rule) => Optimizer::Adam(Adam { lazy_mode: true, ..rule }),
            rule => rule.for_dense(),
        }
    }

    /// The same rule, for a table in which rows that are not pushed stay as they are, and steps are counted as for dense parameters.
    #[must_use]
    pub fn lazily(self) -> Self {
        match self {
            Optimizer::Adam(rule) => Optimizer::Adam(Adam { lazy_mode: true, rows_ahead: false, ..rule }),
            rule => rule,
        }
    }

    /// The same rule without the weight decay that is part of it: for parameters that are excluded from that.
    #[must_use]
    pub fn without_weight_decay(self) -> Self {
        match self {
            Optimizer::AdamW(rule) => Optimizer::AdamW(AdamW { weight_decay: 0.0, ..rule }),
            Optimizer::Lamb(rule) => Optimizer::Lamb(Lamb { weight_decay: 0.0, ..rule }),
            rule => rule,
        }
    }

    /// Initializes the state of `dim` weights; `state.len()` is `state_len(dim)`.
    ///
    /// # Panics
    ///
    /// If `state` has another length.
    pub fn init_state(&self, dim: usize, state: &mut [f32]) {
        assert_eq!(state.len(), self.state_len(dim), "state has the length of the rule");
        state.fill(self.initial_state());
    }

    /// The initial value of every float of state.
    pub(crate) fn initial_state(&self) -> f32 {
        match self {
            Optimizer::Adagrad(rule) => rule.initial_accumulator as f32,
            Optimizer::RowwiseAdagrad(rule) => rule.initial_accumulator as f32,
            _ => 0.0,
        }
    }

    /// One update of D weights with the learning rate `rate`; `step` counts the table's updates from 1.
    ///
    /// # Panics
    ///
    /// If `gradient` is not D floats long, or `state` is not `state_len(D)` floats long.
    pub fn apply(&self, rate: f32, step: u64, weights: &mut [f32], state: &mut [f32], gradient: &[f32]) {
        assert_eq!(state.len(), self.state_len(weights.len()), "state has the length of the rule");
        let dim = weights.len();
        self.at(rate, step).apply_part(None, weights, state, dim, 0, gradient);
    }

    /// Fails if a hyper-parameter is out of range. Tables call it when they are created.
    pub fn validate(&self) -> Result<()> {
        match self {
            Optimizer::Sgd(_) => Ok(()),
            Optimizer::Momentum(rule) => rule.validate(),
            Optimizer::Adagrad(rule) => rule.validate(),
            Optimizer::RowwiseAdagrad(rule) => rule.validate(),
            Optimizer::DecayedAdagrad(rule) => rule.validate(),
            Optimizer::Adadelta(rule) => rule.validate(),
            Optimizer::Adam(rule) => rule.validate(),
            Optimizer::AdamW(rule) => rule.validate(),
            Optimizer::Adamax(rule) => rule.validate(),
            Optimizer::Lamb(rule) => rule.validate(),
            Optimizer::RmsProp(rule) => rule.validate(),
            Optimizer::Ftrl(rule) => rule.validate(),
        }
    }

    /// The rule's short name, as configuration files spell it.
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd(_) => "sgd",
            Optimizer::Momentum(_) => "momentum",
            Optimizer::Adagrad(_) => "adagrad",
            Optimizer::RowwiseAdagrad(_) => "rowwise_adagrad",
            Optimizer::DecayedAdagrad(_) => "decayed_adagrad",
            Optimizer::Adadelta(_) => "adadelta",
            Optimizer::Adam(_) => "adam",
            Optimizer::AdamW(_) => "adamw",
            Optimizer::Adamax(_) => "adamax",
            Optimizer::Lamb(_) => "lamb",
            Optimizer::RmsProp(_) => "rms_prop",
            Optimizer::Ftrl(_) => "ftrl",
        }
    }

    /// Names of the rule's slots, in order, for saving and showing them.
    pub fn slot_names(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd(_) => &[],
            Optimizer::Momentum(_) => &["velocity"],
            Optimizer::Adagrad(_) | Optimizer::RowwiseAdagrad(_) | Optimizer::DecayedAdagrad(_) => &["moment"],
            Optimizer::Adadelta(_) => &["mean_square", "mean_square_update"],
            Optimizer::Adam(_) | Optimizer::AdamW(_) | Optimizer::Lamb(_) => &["moment1", "moment2"],
            Optimizer::Adamax(_) => &["moment", "inf_norm"],
            Optimizer::RmsProp(rule) => &["mean_square", "momentum", "mean_gradient"][..rule.slots()],
            Optimizer::Ftrl(_) => &["squared", "linear"],
        }
    }

    /// The rule with everything precomputed that is the same for all elements of one step.
    pub(crate) fn at(&self, rate: f32, step: u64) -> Step {
        match self {
            Optimizer::Sgd(_) => Step::Sgd(sgd::Update { rate }),
            Optimizer::Momentum(rule) if rule.nesterov => Step::Nesterov(momentum::NesterovUpdate::new(rule, rate)),
            Optimizer::Momentum(rule) => Step::Momentum(momentum::Update::new(rule, rate)),
            Optimizer::Adagrad(rule) => Step::Adagrad(adagrad::Update::new(rule, rate)),
            Optimizer::RowwiseAdagrad(rule) => Step::RowwiseAdagrad(rowwise_adagrad::Update::new(rule, rate)),
            Optimizer::DecayedAdagrad(rule) => Step::DecayedAdagrad(decayed_adagrad::Update::new(rule, rate)),
            Optimizer::Adadelta(rule) => Step::Adadelta(adadelta::Update::new(rule, rate)),
            Optimizer::Adam(rule) => Step::Adam(adam::Update::new(rule, rate, step)),
            Optimizer::AdamW(rule) => Step::AdamW(adamw::Update::new(rule, rate, step)),
            Optimizer::Adamax(rule) => Step::Adamax(adamax::Update::new(rule, rate, step)),
            Optimizer::Lamb(rule) => Step::Lamb(lamb::Update::new(rule, rate, step)),
            Optimizer::RmsProp(rule) if rule.centered => Step::CenteredRmsProp(rmsprop::Update::new(rule, rate)),
            Optimizer::RmsProp(rule) => Step::RmsProp(rmsprop::Update::new(rule, rate)),
            // FTRL divides by the rate. A rate of 0, from a schedule that warms up from 0 or decays to 0, means no update.
            Optimizer::Ftrl(_) if rate == 0.0 => Step::Nothing,
            Optimizer::Ftrl(rule) if rule.lr_power == -0.5 => Step::FtrlSqrt(ftrl::SqrtUpdate::new(rule, rate)),
            Optimizer::Ftrl(rule) => Step::FtrlPower(ftrl::PowerUpdate::new(rule, rate)),
        }
    }
}

/// One element's update in a rule of `SLOTS` slots; this is all that a rule's file has to define.
pub(crate) trait Rule<const SLOTS: usize> {
    /// The new weight and state of an element.
    fn element(&self, weight: f32, state: [f32; SLOTS], gradient: f32) -> (f32, [f32; SLOTS]);
}

/// A rule at one step, ready to run over any number of rows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Sgd(sgd::Update),
    Momentum(momentum::Update),
    Nesterov(momentum::NesterovUpdate),
    Adagrad(adagrad::Update),
    RowwiseAdagrad(rowwise_adagrad::Update),
    DecayedAdagrad(decayed_adagrad::Update),
    Adadelta(adadelta::Update),
    Adam(adam::Update),
    AdamW(adamw::Update),
    Adamax(adamax::Update),
    Lamb(lamb::Update),
    RmsProp(rmsprop::Update),
    CenteredRmsProp(rmsprop::Update),
    FtrlSqrt(ftrl::SqrtUpdate),
    FtrlPower(ftrl::PowerUpdate),
    /// Weights and state are unchanged.
    Nothing,
}

impl Step {
    /// Updates part of a longer array: `weights` and `gradient` are its elements from `offset` on, `state` is the whole state,
    /// whose slots are `stride` floats each. A rule whose elements depend on each other takes what it is given as one row.
    pub(crate) fn apply_part(
        &self,
        regularizer: Option<&Regularizer>,
        weights: &mut [f32],
        state: &mut [f32],
        stride: usize,
        offset: usize,
        gradient: &[f32],
    ) {
        assert_eq!(weights.len(), gradient.len(), "one gradient per weight");
        let mut part = SingleRow { weights, state, gradient, done: false };
        self.run(regularizer, stride, offset, &mut part);
    }

    /// Updates many rows of weights followed by their state. Vectorised as a whole, instead of one call per row.
    pub(crate) fn apply_rows(&self, regularizer: Option<&Regularizer>, dim: usize, rows: &mut impl Rows) {
        self.run(regularizer, dim, 0, rows);
    }

    fn run(&self, regularizer: Option<&Regularizer>, stride: usize, offset: usize, rows: &mut impl Rows) {
        match self {
            Step::Sgd(rule) => each::<_, _, 0>(rule, regularizer, stride, offset, rows),
            Step::Momentum(rule) => each::<_, _, 1>(rule, regularizer, stride, offset, rows),
            Step::Nesterov(rule) => each::<_, _, 1>(rule, regularizer, stride, offset, rows),
            Step::Adagrad(rule) => each::<_, _, 1>(rule, regularizer, stride, offset, rows),
            Step::RowwiseAdagrad(rule) => each_row(rule, regularizer, rows),
            Step::DecayedAdagrad(rule) => each::<_, _, 1>(rule, regularizer, stride, offset, rows),
            Step::Adadelta(rule) => each::<_, _, 2>(rule, regularizer, stride, offset, rows),
            Step::Adam(rule) => each::<_, _, 2>(rule, regularizer, stride, offset, rows),
            Step::AdamW(rule) => each::<_, _, 2>(rule, regularizer, stride, offset, rows),
            Step::Adamax(rule) => each::<_, _, 2>(rule, regularizer, stride, offset, rows),
            Step::Lamb(rule) => each_by_norm(rule, regularizer, rows),
            Step::RmsProp(rule) => each::<_, _, 2>(rule, regularizer, stride, offset, rows),
            Step::CenteredRmsProp(rule) => each::<_, _, 3>(rule, regularizer, stride, offset, rows),
            Step::FtrlSqrt(rule) => each::<_, _, 2>(rule, regularizer, stride, offset, rows),
            Step::FtrlPower(rule) => each::<_, _, 2>(rule, regularizer, stride, offset, rows),
            Step::Nothing => {}
        }
    }
}

/// An iterator over rows: weights, state, gradient.
pub(crate) trait Rows {
    /// The weights of a row.
    type Weights<'a>: Weights
    where
        Self: 'a;

    /// The next row, or `None` after the last.
    fn next(&mut self) -> Option<(Self::Weights<'_>, &mut [f32], &[f32])>;
}

/// The weights of a row, however they are stored; updates compute in floats.
pub(crate) trait Weights {
    /// D.
    fn dim(&self) -> usize;

    /// `LANES` weights from `at` on.
    fn load<const LANES: usize>(&self, at: usize) -> [f32; LANES];

    /// Replaces them.
    fn store<const LANES: usize>(&mut self, at: usize, values: [f32; LANES]);
}

impl Weights for &mut [f32] {
    #[inline(always)]
    fn dim(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn load<const LANES: usize>(&self, at: usize) -> [f32; LANES] {
        load(self, at)
    }

    #[inline(always)]
    fn store<const LANES: usize>(&mut self, at: usize, values: [f32; LANES]) {
        self[at..at + LANES].copy_from_slice(&values);
    }
}

/// Weights of 16 bits, rounded stochastically when they are stored.
pub(crate) struct Bfloat16Weights<'a> {
    pub(crate) bits: &'a mut [u16],
    /// Determines the random bits of this row in this step.
    pub(crate) seed: u32,
}

impl Weights for Bfloat16Weights<'_> {
    #[inline(always)]
    fn dim(&self) -> usize {
        self.bits.len()
    }

    #[inline(always)]
    fn load<const LANES: usize>(&self, at: usize) -> [f32; LANES] {
        let mut lanes = [0; LANES];
        lanes.copy_from_slice(&self.bits[at..at + LANES]);
        lanes.map(bfloat16::widen)
    }

    #[inline(always)]
    fn store<const LANES: usize>(&mut self, at: usize, values: [f32; LANES]) {
        let mut lanes = [0; LANES];
        for lane in 0..LANES {
            let random = bfloat16::random_bits(self.seed, (at + lane) as u32);
            lanes[lane] = bfloat16::round_stochastically(values[lane], random);
        }
        self.bits[at..at + LANES].copy_from_slice(&lanes);
    }
}

/// Contiguous weights as the only row.
struct SingleRow<'a> {
    weights: &'a mut [f32],
    state: &'a mut [f32],
    gradient: &'a [f32],
    done: bool,
}

impl Rows for SingleRow<'_> {
    type Weights<'a>
        = &'a mut [f32]
    where
        Self: 'a;

    #[inline]
    fn next(&mut self) -> Option<(&mut [f32], &mut [f32], &[f32])> {
        if std::mem::replace(&mut self.done, true) {
            return None;
        }
        Some((self.weights, self.state, self.gradient))
    }
}

/// Zero for a moment that is too small to move a weight. The moment of a weight without gradients, such as one behind a unit that
/// is never active, shrinks with every step until it is subnormal, and arithmetic on subnormal floats takes a hundred times as
/// long.
#[inline(always)]
fn without_subnormals(moment: f32) -> f32 {
    const LEAST: f32 = 1e-30;
    if moment.abs() < LEAST { 0.0 } else { moment }
}

/// Fails if the settings that the rules with two moments share are out of range.
fn check_moments(owner: &'static str, beta1: f64, beta2: f64, epsilon: f64) -> Result<()> {
    require((0.0..1.0).contains(&beta1), owner, "beta1", "in [0, 1)", beta1)?;
    require((0.0..1.0).contains(&beta2), owner, "beta2", "in [0, 1)", beta2)?;
    require(epsilon > 0.0, owner, "epsilon", "a number above 0", epsilon)
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn each<R: Rule<SLOTS>, S: Rows, const SLOTS: usize>(
    rule: &R,
    regularizer: Option<&Regularizer>,
    stride: usize,
    offset: usize,
    rows: &mut S,
) {
    while let Some((mut weights, state, gradient)) = rows.next() {
        let dim = weights.dim();
        let weights = &mut weights;
        assert!(gradient.len() == dim && (SLOTS == 0 || offset + dim <= stride) && state.len() == SLOTS * stride);
        let mut at = 0;
        // Eight floats are one AVX2 register. The rest is done in smaller blocks: a row of 10 is 8 and 2 single elements.
        while at + 8 <= dim {
            block::<_, _, SLOTS, 8>(rule, regularizer, weights, state, gradient, at, stride, offset);
            at += 8;
        }
        if at + 4 <= dim {
            block::<_, _, SLOTS, 4>(rule, regularizer, weights, state, gradient, at, stride, offset);
            at += 4;
        }
        while at < dim {
            block::<_, _, SLOTS, 1>(rule, regularizer, weights, state, gradient, at, stride, offset);
            at += 1;
        }
    }
}

/// The rows of a row-wise rule: first the mean square of each row's gradient, then its weights.
#[multiversion(targets("x86_64+avx2+fma"))]
fn each_row<S: Rows>(rule: &rowwise_adagrad::Update, regularizer: Option<&Regularizer>, rows: &mut S) {
    while let Some((mut weights, state, gradient)) = rows.next() {
        let dim = weights.dim();
        assert!(gradient.len() == dim && state.len() == 1);
        let squares = rowwise_adagrad::sum_of_squares(regularizer, &weights, gradient);
        let factor = rule.factor(&mut state[0], squares, dim);
        let mut at = 0;
        while at + 8 <= dim {
            descend::<_, 8>(regularizer, &mut weights, gradient, at, factor);
            at += 8;
        }
        while at < dim {
            descend::<_, 1>(regularizer, &mut weights, gradient, at, factor);
            at += 1;
        }
    }
}

/// The rows of a rule that needs the norms of a row before it can move any of its weights.
#[multiversion(targets("x86_64+avx2+fma"))]
fn each_by_norm<S: Rows>(rule: &lamb::Update, regularizer: Option<&Regularizer>, rows: &mut S) {
    while let Some((mut weights, state, gradient)) = rows.next() {
        assert!(gradient.len() == weights.dim() && state.len() == 2 * gradient.len());
        rule.apply(regularizer, &mut weights, state, gradient);
    }
}

/// Subtracts `factor` times the gradient from `LANES` weights.
#[inline(always)]
fn descend<W: Weights, const LANES: usize>(
    regularizer: Option<&Regularizer>,
    weights: &mut W,
    gradient: &[f32],
    at: usize,
    factor: f32,
) {
    let (mut w, g) = regularized::<LANES>(regularizer, weights, gradient, at);
    for lane in 0..LANES {
        w[lane] -= factor * g[lane];
    }
    weights.store(at, w);
}

/// `LANES` weights, and their gradients with what the regularizer adds.
#[inline(always)]
fn regularized<const LANES: usize>(
    regularizer: Option<&Regularizer>,
    weights: &impl Weights,
    gradient: &[f32],
    at: usize,
) -> ([f32; LANES], [f32; LANES]) {
    let w: [f32; LANES] = weights.load(at);
    let mut g: [f32; LANES] = load(gradient, at);
    if let Some(regularizer) = regularizer {
        regularizer.add_to(&w, &mut g);
    }
    (w, g)
}

/// `LANES` elements from `at` on: everything is loaded before anything is stored, so the compiler can vectorise without proving
/// that the arrays do not overlap.
#[inline(always)]
fn block<R: Rule<SLOTS>, W: Weights, const SLOTS: usize, const LANES: usize>(
    rule: &R,
    regularizer: Option<&Regularizer>,
    weights: &mut W,
    state: &mut [f32],
    gradient: &[f32],
    at: usize,
    stride: usize,
    offset: usize,
) {
    let (mut w, g) = regularized::<LANES>(regularizer, weights, gradient, at);
    let mut s: [[f32; LANES]; SLOTS] = std::array::from_fn(|slot| load(state, slot * stride + offset + at));
    for lane in 0..LANES {
        let (weight, new) = rule.element(w[lane], std::array::from_fn(|slot| s[slot][lane]), g[lane]);
        w[lane] = weight;
        for slot in 0..SLOTS {
            s[slot][lane] = new[slot];
        }
    }
    weights.store(at, w);
    for slot in 0..SLOTS {
        let start = slot * stride + offset + at;
        state[start..start + LANES].copy_from_slice(&s[slot]);
    }
}

#[inline(always)]
fn load<const LANES: usize>(values: &[f32], start: usize) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes.copy_from_slice(&values[start..start + LANES]);
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_updated_alike_whatever_block_it_falls_into() {
        let rules = [
            Optimizer::Sgd(Sgd {}),
            Optimizer::Momentum(Momentum { nesterov: true, ..Momentum::default() }),
            Optimizer::Adagrad(Adagrad::default()),
            Optimizer::DecayedAdagrad(DecayedAdagrad::default()),
            Optimizer::Adadelta(Adadelta::default()),
            Optimizer::Adam(Adam::default()),
            Optimizer::AdamW(AdamW::default()),
            Optimizer::Adamax(Adamax::default()),
            Optimizer::RmsProp(RmsProp { centered: true, momentum: 0.5, ..RmsProp::default() }),
            Optimizer::Ftrl(Ftrl { l1: 0.1, l2: 0.1, ..Ftrl::default() }),
            Optimizer::Ftrl(Ftrl { lr_power: -0.3, ..Ftrl::default() }),
        ];
        for rule in rules {
            // 15 = 8 + 4 + 3 single elements.
            let (dim, slots) = (15, rule.state_slots());
            let mut weights: Vec<f32> = (0..dim).map(|i| i as f32 * 0.37 - 2.0).collect();
            let mut state = vec![0.0; slots * dim];
            rule.init_state(dim, &mut state);
            let (mut alone, mut alone_state) = (weights.clone(), state.clone());
            for step in 1..=4 {
                let gradient: Vec<f32> = (0..dim).map(|i| ((i * 7 + step as usize) % 11) as f32 * 0.21 - 1.0).collect();
                rule.apply(0.1, step, &mut weights, &mut state, &gradient);
                for i in 0..dim {
                    let mut kept: Vec<f32> = (0..slots).map(|slot| alone_state[slot * dim + i]).collect();
                    rule.apply(0.1, step, &mut alone[i..=i], &mut kept, &gradient[i..=i]);
                    kept.iter().enumerate().for_each(|(slot, value)| alone_state[slot * dim + i] = *value);
                }
            }
            assert_eq!((weights, state), (alone, alone_state), "{rule:?}");
        }
    }

    #[test]
    fn moments_of_a_weight_without_gradients_become_zero_and_never_subnormal() {
        let rules = [
            Optimizer::Momentum(Momentum::default()),
            Optimizer::Momentum(Momentum { nesterov: true, ..Momentum::default() }),
            Optimizer::Adam(Adam::default()),
            Optimizer::AdamW(AdamW::default()),
            Optimizer::Adamax(Adamax::default()),
            Optimizer::Lamb(Lamb::default()),
            Optimizer::DecayedAdagrad(DecayedAdagrad::default()),
            Optimizer::Adadelta(Adadelta::default()),
            Optimizer::RmsProp(RmsProp { momentum: 0.9, ..RmsProp::default() }),
            Optimizer::RmsProp(RmsProp { centered: true, momentum: 0.9, ..RmsProp::default() }),
        ];
        for rule in rules {
            let (mut weights, mut state) = ([1.0f32; 8], vec![0.0; rule.state_slots() * 8]);
            rule.init_state(8, &mut state);
            for step in 1..=2000 {
                let gradient = [if step == 1 { 1e-3 } else { 0.0 }; 8];
                rule.apply(0.01, step, &mut weights, &mut state, &gradient);
                assert!(!state.iter().any(|value| value.is_subnormal()), "{rule:?}, step {step}: {state:?}");
            }
            assert!(state.contains(&0.0), "{rule:?}: {state:?}");
        }
    }

    #[test]
    fn a_rate_of_zero_moves_no_weight_under_any_rule() {
        let rules = [
            Optimizer::Ftrl(Ftrl::default()),
            Optimizer::Adam(Adam::default()),
            Optimizer::AdamW(AdamW::default()),
            Optimizer::Lamb(Lamb::default()),
            Optimizer::Adadelta(Adadelta::default()),
            Optimizer::Sgd(Sgd {}),
        ];
        for rule in rules {
            let mut weights = [1.0, -2.0];
            let mut state = vec![0.0; rule.state_slots() * 2];
            rule.apply(0.0, 1, &mut weights, &mut state, &[0.5, 0.5]);
            assert_eq!(weights, [1.0, -2.0], "{rule:?}");
        }
    }

    #[test]
    fn slots_have_names() {
        let rules = [
            Optimizer::Sgd(Sgd {}),
            Optimizer::DecayedAdagrad(DecayedAdagrad::default()),
            Optimizer::Adadelta(Adadelta::default()),
            Optimizer::Adam(Adam::default()),
            Optimizer::AdamW(AdamW::default()),
            Optimizer::Adamax(Adamax::default()),
            Optimizer::Lamb(Lamb::default()),
            Optimizer::RmsProp(RmsProp::default()),
        ];
        for rule in rules {
            assert_eq!(rule.slot_names().len(), rule.state_slots());
        }
    }
}
