//! The ctr accessor: rows that grow and are removed depending on their shows and clicks.
//!
//! A table of `dim` D has, for every key, a short row with one weight (`embed_w`, the first of the D), and for keys with a high
//! enough score a long part with the other D - 1 (`embedx`):
//!
//! ```text
//! row        show | click | delta_score | unseen_days | number of the long part | weight | its state
//! long part  number of the row | D - 1 weights | their state, slot by slot      (row-wise rules: one float in each part)
//!
//! score       = (show - click) * nonclk_coeff + click * click_coeff
//! each push:    show += ds   click += dc   delta_score += (ds - dc) * nonclk_coeff + dc * click_coeff
//!               unseen_days = 0, then the update rule, then the long part is created if score >= embedx_threshold
//! end of day:   unseen_days += 1
//! shrink:       show, click *= show_click_decay_rate; the row is removed if score < delete_threshold
//!               or unseen_days > delete_after_unseen_days
//! ```
//!
//! As long as there is no long part, a pull returns zeros for it and its gradients are dropped. The push that creates the long
//! part initializes it, as PaddlePaddle does. Gradients are applied unchanged: PaddlePaddle multiplies them by the batch size
//! and divides them by `show` in some rules and not in others, which is up to the update rule and does not belong here.

use openfleet_core::Key;
use serde::{Deserialize, Serialize};

use super::{Additive, NewRow, Push, Retention, Row, RowLayout, Target};
use crate::error::{Result, require};
use crate::optimizer;
use crate::sparse::SparseSpec;
use crate::sparse::rows::Rows;

/// The thresholds and rates of a ctr row. The defaults are those of PaddlePaddle's Python API: a long part at once, no decay,
/// and deletion only after 30 unseen days.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CtrOptions {
    /// Added to the score by a show without a click.
    pub nonclk_coeff: f32,
    /// Added to the score by a click.
    pub click_coeff: f32,
    /// Minimum score of rows in a base model.
    pub base_threshold: f32,
    /// Minimum score gained since the last save of rows in a delta model.
    pub delta_threshold: f32,
    /// Maximum unseen days of rows in a base or delta model.
    pub delta_keep_days: u32,
    /// Shows and clicks are multiplied by this at each shrink.
    pub show_click_decay_rate: f32,
    /// A shrink deletes rows with a lower score.
    pub delete_threshold: f32,
    /// A shrink deletes rows with more unseen days.
    pub delete_after_unseen_days: u32,
    /// Minimum score of rows with a long part.
    pub embedx_threshold: f32,
    /// Whether the weight of the short row starts at 0 instead of being initialized. Ignored in a table without long parts,
    /// where all keys would be equal.
    pub zero_init: bool,
}

impl Default for CtrOptions {
    fn default() -> Self {
        CtrOptions {
            nonclk_coeff: 0.1,
            click_coeff: 1.0,
            base_threshold: 0.0,
            delta_threshold: 0.0,
            delta_keep_days: 16,
            show_click_decay_rate: 1.0,
            delete_threshold: 0.0,
            delete_after_unseen_days: 30,
            embedx_threshold: 0.0,
            zero_init: true,
        }
    }
}

/// What a ctr row has besides its weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CtrFields {
    /// Number of samples with the key, decayed.
    pub show: f32,
    /// Number of those samples with a positive label, decayed.
    pub click: f32,
    /// The score gained since the last save.
    pub delta_score: f32,
    /// Days since the last push.
    pub unseen_days: u32,
    /// Whether the row has a long part.
    pub has_long: bool,
}

impl CtrOptions {
    /// The score of a row.
    pub fn score(&self, show: f32, click: f32) -> f32 {
        (show - click) * self.nonclk_coeff + click * self.click_coeff
    }

    /// Whether a row is part of a base model.
    pub fn is_in_base(&self, row: &CtrFields) -> bool {
        self.score(row.show, row.click) >= self.base_threshold && row.unseen_days <= self.delta_keep_days
    }

    /// Whether a row is part of a delta model.
    pub fn is_in_delta(&self, row: &CtrFields) -> bool {
        self.is_in_base(row) && row.delta_score >= self.delta_threshold
    }

    pub(super) fn validate(&self) -> Result<()> {
        let owner = "the ctr accessor";
        let numbers = [
            ("nonclk_coeff", self.nonclk_coeff),
            ("click_coeff", self.click_coeff),
            ("base_threshold", self.base_threshold),
            ("delta_threshold", self.delta_threshold),
            ("delete_threshold", self.delete_threshold),
            ("embedx_threshold", self.embedx_threshold),
        ];
        for (field, number) in numbers {
            require(number.is_finite(), owner, field, "a finite number", number)?;
        }
        let rate = self.show_click_decay_rate;
        require((0.0..=1.0).contains(&rate), owner, "show_click_decay_rate", "from 0 to 1", rate)
    }

    fn starts_at_zero(&self, dim: usize) -> bool {
        self.zero_init && dim > 1
    }
}

// Offsets of the fields in a row.
const SHOW: usize = 0;
const CLICK: usize = 1;
const DELTA_SCORE: usize = 2;
const UNSEEN_DAYS: usize = 3;
/// The number of the long part plus one, as bits; 0 if there is none.
const LONG: usize = 4;
const WEIGHT: usize = 5;

/// The number of the owning row, as bits, before the weights of a long part.
const OWNER: usize = 1;

impl RowLayout for CtrOptions {
    fn widths(&self, spec: &SparseSpec) -> (usize, usize) {
        let with_state = |dim: usize| dim + spec.optimizer.state_len(dim);
        (WEIGHT + with_state(1), if spec.dim > 1 { OWNER + with_state(spec.dim - 1) } else { 0 })
    }

    #[inline(always)]
    fn pulled_floats(&self, _dim: usize) -> usize {
        WEIGHT + 1
    }

    fn create(&self, rows: &mut Rows, row: u32, new_row: &NewRow<'_>, show: f32, click: f32) {
        let key = rows.key(row);
        let fields = rows.get_mut(row);
        fields[SHOW] = show;
        fields[CLICK] = click;
        fields[DELTA_SCORE] = self.score(show, click);
        if !self.starts_at_zero(new_row.spec.dim) {
            new_row.first_weights(key, &mut fields[WEIGHT..=WEIGHT]);
        }
        new_row.spec.optimizer.init_state(1, &mut fields[WEIGHT + 1..]);
    }

    fn initial(&self, new_row: &NewRow<'_>, key: Key, out: &mut [f32]) {
        out.fill(0.0);
        if !self.starts_at_zero(new_row.spec.dim) {
            new_row.first_weights(key, &mut out[..1]);
        }
    }

    #[inline(always)]
    fn prefetch_long(&self, rows: &Rows, row: u32, floats: usize) {
        if let Some(long) = long_of(rows, row) {
            rows.long.prefetch(long, floats);
        }
    }

    #[inline(always)]
    fn pull(&self, rows: &Rows, row: u32, out: &mut [f32]) {
        let (first, rest) = out.split_at_mut(1);
        first[0] = rows.get(row)[WEIGHT];
        match long_of(rows, row) {
            Some(long) => rest.copy_from_slice(&rows.long.get(long)[OWNER..][..rest.len()]),
            None => rest.fill(0.0),
        }
    }

    fn push(&self, rows: &mut Rows, push: &Push<'_>, targets: &[Target]) {
        let spec = push.new_row.spec;
        let mut long = [Target::default(); crate::sparse::BATCH];
        let mut long_count = 0;
        // First counts and long parts in the order of the request, then the update rule. The weights of a row and of its long
        // part do not depend on each other, so this gives the same result as one key after another, including duplicates.
        for target in targets {
            let (show, click) = push.show_click(target.at);
            let fields = rows.get_mut(target.row);
            fields[SHOW] += show;
            fields[CLICK] += click;
            fields[DELTA_SCORE] += self.score(show, click);
            fields[UNSEEN_DAYS] = 0.0;
            let score = self.score(fields[SHOW], fields[CLICK]);
            match long_of(rows, target.row) {
                Some(number) => {
                    long[long_count] = Target { at: target.at, row: number };
                    long_count += 1;
                }
                None if spec.dim > 1 && score >= self.embedx_threshold => extend(rows, target.row, &push.new_row),
                None => {}
            }
        }
        push.update.apply_rows(push.regularizer, 1, &mut Short { rows, push, targets });
        if long_count > 0 {
            let mut touched = Long { rows, push, targets: &long[..long_count], dim: spec.dim - 1 };
            push.update.apply_rows(push.regularizer, spec.dim - 1, &mut touched);
        }
    }

    fn decays(&self) -> bool {
        true
    }

    fn end_of_day(&self, rows: &mut Rows, row: u32) {
        rows.get_mut(row)[UNSEEN_DAYS] += 1.0;
    }

    fn decay(&self, rows: &mut Rows, row: u32) -> Retention {
        let fields = rows.get_mut(row);
        fields[SHOW] *= self.show_click_decay_rate;
        fields[CLICK] *= self.show_click_decay_rate;
        if self.score(fields[SHOW], fields[CLICK]) < self.delete_threshold {
            Retention::LowScore
        } else if fields[UNSEEN_DAYS] as u32 > self.delete_after_unseen_days {
            Retention::Unseen
        } else {
            Retention::Keep
        }
    }

    fn release(&self, rows: &mut Rows, row: u32) {
        let Some(long) = long_of(rows, row) else { return };
        if rows.long.swap_remove(long) {
            let owner = rows.long.get(long)[0].to_bits();
            rows.get_mut(owner)[LONG] = f32::from_bits(long + 1);
        }
    }

    fn renumbered(&self, rows: &mut Rows, row: u32) {
        if let Some(long) = long_of(rows, row) {
            rows.long.get_mut(long)[0] = f32::from_bits(row);
        }
    }

    fn show<'a>(&self, rows: &'a Rows, row: u32, spec: &SparseSpec, buffer: &'a mut Vec<f32>) -> Row<'a> {
        let (dim, state_len) = (spec.dim, spec.state_len());
        buffer.clear();
        buffer.resize(dim, 0.0);
        buffer.resize(dim + state_len, spec.optimizer.initial_state());
        let fields = rows.get(row);
        let long = long_of(rows, row).map(|long| &rows.long.get(long)[OWNER..]);
        let (weights, state) = buffer.split_at_mut(dim);
        // Weights and slots alike: the first float is from the row, the others from the long part. A slot of a row-wise rule has
        // one float from each.
        let width = state_len / spec.optimizer.state_slots().max(1);
        let slots = std::iter::once(weights).chain(state.chunks_exact_mut(width.max(1)));
        let mut start = 0;
        for (slot, floats) in slots.enumerate() {
            floats[0] = fields[WEIGHT + slot];
            let rest = floats.len() - 1;
            if let Some(long) = long {
                floats[1..].copy_from_slice(&long[start..][..rest]);
            }
            start += rest;
        }
        let (weights, state) = buffer.split_at(dim);
        let ctr = CtrFields {
            show: fields[SHOW],
            click: fields[CLICK],
            delta_score: fields[DELTA_SCORE],
            unseen_days: fields[UNSEEN_DAYS] as u32,
            has_long: long.is_some(),
        };
        Row { key: rows.key(row), stamp: rows.stamp(row), weights, state, ctr: Some(ctr) }
    }

    fn restore(
        &self,
        rows: &mut Rows,
        row: u32,
        new_row: &NewRow<'_>,
        weights: &[f32],
        state: Option<&[f32]>,
        ctr: Option<CtrFields>,
    ) {
        let (spec, dim) = (new_row.spec, new_row.spec.dim);
        // Floats of a slot, of the row and its long part together.
        let width = (spec.state_len() / spec.optimizer.state_slots().max(1)).max(1);
        if dim > 1 && ctr.is_none_or(|ctr| ctr.has_long) && long_of(rows, row).is_none() {
            extend(rows, row, new_row);
        }
        if ctr.is_some_and(|ctr| !ctr.has_long) {
            self.release(rows, row);
            rows.get_mut(row)[LONG] = 0.0;
        }
        let fields = rows.get_mut(row);
        if let Some(ctr) = ctr {
            fields[SHOW] = ctr.show;
            fields[CLICK] = ctr.click;
            fields[DELTA_SCORE] = ctr.delta_score;
            fields[UNSEEN_DAYS] = ctr.unseen_days as f32;
        }
        fields[WEIGHT] = weights[0];
        match state {
            Some(state) => {
                let slots = state.chunks_exact(width).enumerate();
                slots.for_each(|(slot, floats)| fields[WEIGHT + 1 + slot] = floats[0]);
            }
            None => new_row.spec.optimizer.init_state(1, &mut fields[WEIGHT + 1..]),
        }
        let Some(long) = long_of(rows, row) else { return };
        let (long_weights, long_state) = rows.long.get_mut(long)[OWNER..].split_at_mut(dim - 1);
        long_weights.copy_from_slice(&weights[1..]);
        match state {
            Some(state) => {
                for (to, floats) in long_state.chunks_exact_mut((width - 1).max(1)).zip(state.chunks_exact(width)) {
                    to.copy_from_slice(&floats[1..]);
                }
            }
            None => new_row.spec.optimizer.init_state(dim - 1, long_state),
        }
    }
}

impl Additive for CtrOptions {
    fn add(&self, rows: &mut Rows, row: u32, delta: &[f32]) {
        rows.get_mut(row)[WEIGHT] += delta[0];
        if let Some(long) = long_of(rows, row) {
            for (weight, difference) in rows.long.get_mut(long)[OWNER..].iter_mut().zip(&delta[1..]) {
                *weight += difference;
            }
        }
    }
}

/// The number of a row's long part.
#[inline(always)]
fn long_of(rows: &Rows, row: u32) -> Option<u32> {
    rows.get(row)[LONG].to_bits().checked_sub(1)
}

/// Creates the long part of a row and initializes it: columns 1 to D - 1 of the key's initial values.
#[cold]
fn extend(rows: &mut Rows, row: u32, new_row: &NewRow<'_>) {
    let (key, dim) = (rows.key(row), new_row.spec.dim);
    let long = rows.long.push();
    rows.get_mut(row)[LONG] = f32::from_bits(long + 1);
    let part = rows.long.get_mut(long);
    // Column 0 is drawn too, in the position of the owner's number, which overwrites it.
    new_row.first_weights(key, &mut part[..dim]);
    part[0] = f32::from_bits(row);
    new_row.spec.optimizer.init_state(dim - 1, &mut part[dim..]);
}

/// The single weights of the rows to update.
struct Short<'a> {
    rows: &'a mut Rows,
    push: &'a Push<'a>,
    targets: &'a [Target],
}

impl optimizer::Rows for Short<'_> {
    type Weights<'a>
        = &'a mut [f32]
    where
        Self: 'a;

    #[inline(always)]
    fn next(&mut self) -> Option<(&mut [f32], &mut [f32], &[f32])> {
        let (target, rest) = self.targets.split_first()?;
        self.targets = rest;
        let (weight, state) = self.rows.get_mut(target.row)[WEIGHT..].split_at_mut(1);
        Some((weight, state, &self.push.gradient(target.at)[..1]))
    }
}

/// The long parts to update; targets refer to them by their own numbers.
struct Long<'a> {
    rows: &'a mut Rows,
    push: &'a Push<'a>,
    targets: &'a [Target],
    dim: usize,
}

impl optimizer::Rows for Long<'_> {
    type Weights<'a>
        = &'a mut [f32]
    where
        Self: 'a;

    #[inline(always)]
    fn next(&mut self) -> Option<(&mut [f32], &mut [f32], &[f32])> {
        let (target, rest) = self.targets.split_first()?;
        self.targets = rest;
        let (weights, state) = self.rows.long.get_mut(target.row)[OWNER..].split_at_mut(self.dim);
        Some((weights, state, &self.push.gradient(target.at)[1..]))
    }
}
