//! The ctr accessor: rows that grow and fade with the shows and clicks behind them.
//!
//! A table of `dim` D keeps, for every key, a short row with one weight (`embed_w`, the first of the D), and for keys
//! that have earned it a long part with the other D - 1 (`embedx`):
//!
//! ```text
//! row        show | click | delta_score | unseen_days | where the long part is | weight | its state
//! long part  whose it is | D - 1 weights | their state, slot by slot
//!
//! score       = (show - click) * nonclk_coeff + click * click_coeff
//! each push:    show += ds   click += dc   delta_score += (ds - dc) * nonclk_coeff + dc * click_coeff
//!               unseen_days = 0, then the rule, then the long part is created where score >= embedx_threshold
//! end of day:   unseen_days += 1
//! shrink:       show, click *= show_click_decay_rate; the row goes where score < delete_threshold
//!               or unseen_days > delete_after_unseen_days
//! ```
//!
//! While there is no long part a pull shows zeros for it and its gradients are dropped; the push that creates it
//! creates it from first values, as the original does. Gradients are applied as they come: the original multiplies them
//! by the batch size on the way and divides them by `show` in some rules and not in others, which is the update rule's
//! business and nobody's here.

use openfleet_core::Key;
use serde::{Deserialize, Serialize};

use super::{NewRow, Push, Retention, Row, RowLayout, Target};
use crate::error::{Result, require};
use crate::optimizer;
use crate::sparse::SparseSpec;
use crate::sparse::rows::Rows;

/// The numbers of a ctr row's life, with the defaults that the original's Python front gives them: a long part at once,
/// no decay, and deletion after 30 unseen days only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CtrOptions {
    /// What a show without a click adds to the score.
    pub nonclk_coeff: f32,
    /// What a click adds to the score.
    pub click_coeff: f32,
    /// The score from which on a row is part of a base model.
    pub base_threshold: f32,
    /// The score gained since the last save from which on a row is part of a delta model.
    pub delta_threshold: f32,
    /// The most days a row of a base or delta model may have been unseen.
    pub delta_keep_days: u32,
    /// What shows and clicks are multiplied by at each shrink.
    pub show_click_decay_rate: f32,
    /// The score below which a shrink deletes a row.
    pub delete_threshold: f32,
    /// The unseen days beyond which a shrink deletes a row.
    pub delete_after_unseen_days: u32,
    /// The score from which on a row has a long part.
    pub embedx_threshold: f32,
    /// Whether the short row's weight starts from 0 rather than from the initializer; it never does in a table with no
    /// long part, where nothing else would tell keys apart.
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

/// What a ctr row keeps beside its weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CtrFields {
    /// Samples with the key, decayed.
    pub show: f32,
    /// Those of them with a positive label, decayed.
    pub click: f32,
    /// The score gained since the last save.
    pub delta_score: f32,
    /// Days since the last push.
    pub unseen_days: u32,
    /// Whether the row has a long part.
    pub has_long: bool,
}

impl CtrOptions {
    /// What a row is worth.
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

// Where the fields stand in a row.
const SHOW: usize = 0;
const CLICK: usize = 1;
const DELTA_SCORE: usize = 2;
const UNSEEN_DAYS: usize = 3;
/// The number of the long part plus one, as bits; 0 where there is none.
const LONG: usize = 4;
const WEIGHT: usize = 5;

/// The owner's number, as bits, before the weights of a long part.
const OWNER: usize = 1;

impl RowLayout for CtrOptions {
    fn widths(&self, dim: usize, slots: usize) -> (usize, usize) {
        (WEIGHT + 1 + slots, if dim > 1 { OWNER + (dim - 1) * (1 + slots) } else { 0 })
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
    fn look_further(&self, rows: &Rows, row: u32, floats: usize) {
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
        // Counts and long parts first, in the order of the request, then the rule: the weights of a row and of its long
        // part do not depend on each other, so this equals taking one key after another, duplicates included.
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
        let regularizer = spec.regularizer.as_ref();
        push.update.apply_rows(regularizer, 1, &mut Short { rows, push, targets });
        if long_count > 0 {
            let mut touched = Long { rows, push, targets: &long[..long_count], dim: spec.dim - 1 };
            push.update.apply_rows(regularizer, spec.dim - 1, &mut touched);
        }
    }

    fn add(&self, rows: &mut Rows, row: u32, delta: &[f32]) {
        rows.get_mut(row)[WEIGHT] += delta[0];
        if let Some(long) = long_of(rows, row) {
            for (weight, difference) in rows.long.get_mut(long)[OWNER..].iter_mut().zip(&delta[1..]) {
                *weight += difference;
            }
        }
    }

    fn fades(&self) -> bool {
        true
    }

    fn end_of_day(&self, rows: &mut Rows, row: u32) {
        rows.get_mut(row)[UNSEEN_DAYS] += 1.0;
    }

    fn fade(&self, rows: &mut Rows, row: u32) -> Retention {
        let fields = rows.get_mut(row);
        fields[SHOW] *= self.show_click_decay_rate;
        fields[CLICK] *= self.show_click_decay_rate;
        if self.score(fields[SHOW], fields[CLICK]) < self.delete_threshold {
            Retention::LowScore
        } else if fields[UNSEEN_DAYS] as u32 > self.delete_after_unseen_days {
            Retention::Unseen
        } else {
            Retention::Stays
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
        let (dim, slots) = (spec.dim, spec.optimizer.state_slots());
        buffer.clear();
        buffer.resize(dim * (1 + slots), 0.0);
        spec.optimizer.init_state(dim, &mut buffer[dim..]);
        let fields = rows.get(row);
        let long = long_of(rows, row).map(|long| &rows.long.get(long)[OWNER..]);
        // Weights and slots alike: the first of D floats from the row, the others from the long part.
        for (slot, floats) in buffer.chunks_exact_mut(dim).enumerate() {
            floats[0] = fields[WEIGHT + slot];
            if let Some(long) = long {
                floats[1..].copy_from_slice(&long[slot * (dim - 1)..][..dim - 1]);
            }
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
        let dim = new_row.spec.dim;
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
                state.chunks_exact(dim).enumerate().for_each(|(slot, floats)| fields[WEIGHT + 1 + slot] = floats[0]);
            }
            None => new_row.spec.optimizer.init_state(1, &mut fields[WEIGHT + 1..]),
        }
        let Some(long) = long_of(rows, row) else { return };
        let (long_weights, long_state) = rows.long.get_mut(long)[OWNER..].split_at_mut(dim - 1);
        long_weights.copy_from_slice(&weights[1..]);
        match state {
            Some(state) => {
                for (to, floats) in long_state.chunks_exact_mut(dim - 1).zip(state.chunks_exact(dim)) {
                    to.copy_from_slice(&floats[1..]);
                }
            }
            None => new_row.spec.optimizer.init_state(dim - 1, long_state),
        }
    }
}

/// The number of a row's long part.
#[inline(always)]
fn long_of(rows: &Rows, row: u32) -> Option<u32> {
    rows.get(row)[LONG].to_bits().checked_sub(1)
}

/// Gives a row its long part, from first values: columns 1 to D - 1 of what the initializer draws for the key.
#[cold]
fn extend(rows: &mut Rows, row: u32, new_row: &NewRow<'_>) {
    let (key, dim) = (rows.key(row), new_row.spec.dim);
    let long = rows.long.push();
    rows.get_mut(row)[LONG] = f32::from_bits(long + 1);
    let part = rows.long.get_mut(long);
    // Column 0 is drawn too, over the owner's place, and makes way for it.
    new_row.first_weights(key, &mut part[..dim]);
    part[0] = f32::from_bits(row);
    new_row.spec.optimizer.init_state(dim - 1, &mut part[dim..]);
}

/// The single weights of the rows that a rule is to change.
struct Short<'a> {
    rows: &'a mut Rows,
    push: &'a Push<'a>,
    targets: &'a [Target],
}

impl optimizer::Rows for Short<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<(&mut [f32], &mut [f32], &[f32])> {
        let (target, rest) = self.targets.split_first()?;
        self.targets = rest;
        let (weight, state) = self.rows.get_mut(target.row)[WEIGHT..].split_at_mut(1);
        Some((weight, state, &self.push.gradient(target.at)[..1]))
    }
}

/// The long parts that a rule is to change; targets name them by their own numbers.
struct Long<'a> {
    rows: &'a mut Rows,
    push: &'a Push<'a>,
    targets: &'a [Target],
    dim: usize,
}

impl optimizer::Rows for Long<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<(&mut [f32], &mut [f32], &[f32])> {
        let (target, rest) = self.targets.split_first()?;
        self.targets = rest;
        let (weights, state) = self.rows.long.get_mut(target.row)[OWNER..].split_at_mut(self.dim);
        Some((weights, state, &self.push.gradient(target.at)[1..]))
    }
}
