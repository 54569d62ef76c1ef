//! Accessors: layout and life of a sparse row, never the update rule.
//!
//! An accessor says which floats a row consists of, what a pull shows of them, what a push notes beside the gradient,
//! and when a row has outlived its use. One accessor a file, each behind `RowLayout`; a shard runs any of them and is
//! compiled once for each, so that a plain table does not pay for what another kind keeps.

mod ctr;
mod plain;

pub use ctr::{CtrFields, CtrOptions};
pub(crate) use plain::Plain;

use openfleet_core::Key;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::initializer::Fans;
use crate::optimizer::Step;
use crate::push::ShowClick;
use crate::sparse::SparseSpec;
use crate::sparse::rows::Rows;

/// What the rows of a sparse table consist of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accessor {
    /// Weights, their optimizer state and a last-seen stamp.
    #[default]
    Plain,
    /// Shows and clicks beside the weights, and a long part that rows get when they are worth it.
    Ctr(CtrOptions),
}

impl Accessor {
    /// What is wrong with the options, if anything.
    pub fn validate(&self) -> Result<()> {
        match self {
            Accessor::Plain => Ok(()),
            Accessor::Ctr(options) => options.validate(),
        }
    }
}

/// A row with everything that has to be saved of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row<'a> {
    /// Whose row it is.
    pub key: Key,
    /// When it was last touched.
    pub stamp: u32,
    /// `dim` weights; zeros where a long part is missing.
    pub weights: &'a [f32],
    /// The optimizer's slots, `dim` floats each; as at the start where a long part is missing.
    pub state: &'a [f32],
    /// What the ctr accessor keeps beside them.
    pub ctr: Option<CtrFields>,
}

/// What a row is made from, and the stamp that touched rows get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewRow<'a> {
    pub(crate) spec: &'a SparseSpec,
    pub(crate) fans: Fans,
    pub(crate) stamp: u32,
}

impl NewRow<'_> {
    /// The first weights of a key's row.
    pub(crate) fn first_weights(&self, key: Key, out: &mut [f32]) {
        self.spec.initializer.row(self.spec.seed, key, self.fans, out);
    }

    /// What a pull shows of a key that has no row and gets none: first values, or zeros if it would have to earn a row.
    pub(crate) fn show_absent(&self, layout: &impl RowLayout, key: Key, out: &mut [f32]) {
        if self.spec.admission.at_once(self.spec.seed, key) {
            layout.initial(self, key, out);
        } else {
            out.fill(0.0);
        }
    }
}

/// A push on its way through the shards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Push<'a> {
    pub(crate) new_row: NewRow<'a>,
    pub(crate) update: Step,
    pub(crate) gradients: &'a [f32],
    pub(crate) show_click: Option<ShowClick<'a>>,
}

impl<'a> Push<'a> {
    /// The gradient at a position of the request.
    #[inline(always)]
    pub(crate) fn gradient(&self, at: u32) -> &'a [f32] {
        let dim = self.new_row.spec.dim;
        &self.gradients[at as usize * dim..][..dim]
    }

    /// Shows and clicks at a position of the request.
    #[inline(always)]
    pub(crate) fn show_click(&self, at: u32) -> (f32, f32) {
        self.show_click.map_or((1.0, 0.0), |counts| (counts.show[at as usize], counts.click[at as usize]))
    }
}

/// One key of a push whose row is known: where it stands in the request, and the row.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Target {
    pub(crate) at: u32,
    pub(crate) row: u32,
}

/// Why a row goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retention {
    Stays,
    LowScore,
    Unseen,
}

/// What a shard asks of an accessor. Rows are named by number and may be renumbered when another one is removed.
pub(crate) trait RowLayout {
    /// Floats of a row and of a long part, with `slots` floats of state a weight.
    fn widths(&self, dim: usize, slots: usize) -> (usize, usize);

    /// Floats at the front of a row that a pull reads.
    fn pulled_floats(&self, dim: usize) -> usize;

    /// Writes a new row, which is all zeros, with the shows and clicks that earned it.
    fn create(&self, rows: &mut Rows, row: u32, new_row: &NewRow<'_>, show: f32, click: f32);

    /// What a pull would show of a row just created.
    fn initial(&self, new_row: &NewRow<'_>, key: Key, out: &mut [f32]);

    /// Asks for the first `floats` floats of what a row has elsewhere; the row itself is in the cache.
    fn look_further(&self, _rows: &Rows, _row: u32, _floats: usize) {}

    /// Copies the weights of a row.
    fn pull(&self, rows: &Rows, row: u32, out: &mut [f32]);

    /// Applies the gradients of `targets`, one after another.
    fn push(&self, rows: &mut Rows, push: &Push<'_>, targets: &[Target]);

    /// Adds to the weights as they are.
    fn add(&self, rows: &mut Rows, row: u32, delta: &[f32]);

    /// Whether days and shrinking change rows that stay.
    fn fades(&self) -> bool {
        false
    }

    /// A day has passed.
    fn end_of_day(&self, _rows: &mut Rows, _row: u32) {}

    /// Lets a row fade, and says whether it still earns its place.
    fn fade(&self, _rows: &mut Rows, _row: u32) -> Retention {
        Retention::Stays
    }

    /// The row is about to be removed: gives back what it holds elsewhere.
    fn release(&self, _rows: &mut Rows, _row: u32) {}

    /// The row has this number now.
    fn renumbered(&self, _rows: &mut Rows, _row: u32) {}

    /// The row as it is saved; `buffer` is for accessors whose weights do not lie side by side.
    fn show<'a>(&self, rows: &'a Rows, row: u32, spec: &SparseSpec, buffer: &'a mut Vec<f32>) -> Row<'a>;

    /// Writes weights and state, and the fields where they are given.
    fn restore(
        &self,
        rows: &mut Rows,
        row: u32,
        new_row: &NewRow<'_>,
        weights: &[f32],
        state: Option<&[f32]>,
        ctr: Option<CtrFields>,
    );
}
