//! Accessors: layout and lifetime of a sparse row, never the update rule.
//!
//! An accessor defines the floats of a row, what a pull returns, what a push records besides the gradient, and when a row is
//! removed. One accessor per file, each implementing `RowLayout`. A shard works with any of them and is compiled once for each,
//! so a plain table does not pay for what another accessor stores.

mod ctr;
mod plain;
mod plain_bfloat16;

pub use ctr::{CtrFields, CtrOptions};
pub(crate) use plain::Plain;
pub(crate) use plain_bfloat16::PlainBfloat16;

use openfleet_core::Key;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::initializer::Fans;
use crate::optimizer::Step;
use crate::push::ShowClick;
use crate::regularizer::Regularizer;
use crate::sparse::SparseSpec;
use crate::sparse::rows::Rows;

/// What the rows of a sparse table consist of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accessor {
    /// Weights, their optimizer state and a last-seen stamp.
    #[default]
    Plain,
    /// Also shows and clicks, and a long part for rows with a high enough score.
    Ctr(CtrOptions),
}

impl Accessor {
    /// Fails if an option is out of range.
    pub fn validate(&self) -> Result<()> {
        match self {
            Accessor::Plain => Ok(()),
            Accessor::Ctr(options) => options.validate(),
        }
    }
}

/// How the weights of a row are stored. Optimizer state is always 32-bit floats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowStorage {
    /// 32-bit floats.
    #[default]
    Float32,
    /// The upper 16 bits of a float. Updates compute in 32 bits and round stochastically; the random bits depend only on the
    /// table's seed, the key and the step. Only for plain rows.
    Bfloat16,
}

impl RowStorage {
    /// Whether it is the default, which is not written to files.
    pub fn is_float32(&self) -> bool {
        *self == RowStorage::Float32
    }

    /// Its name in programs and files.
    pub fn name(self) -> &'static str {
        match self {
            RowStorage::Float32 => "float32",
            RowStorage::Bfloat16 => "bfloat16",
        }
    }
}

impl std::str::FromStr for RowStorage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = [RowStorage::Float32, RowStorage::Bfloat16];
        let found = known.into_iter().find(|storage| storage.name() == text);
        found.ok_or_else(|| Error::Setting {
            owner: "a sparse table",
            field: "storage",
            expected: "`float32` or `bfloat16`",
            got: format!("`{text}`"),
        })
    }
}

/// A row with everything that is saved of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row<'a> {
    /// The key of the row.
    pub key: Key,
    /// When it was last touched.
    pub stamp: u32,
    /// `dim` weights; zeros if the long part is missing.
    pub weights: &'a [f32],
    /// The optimizer's slots, `dim` floats each (one per part of the row if the optimizer is row-wise); initial values if the
    /// long part is missing.
    pub state: &'a [f32],
    /// The fields of the ctr accessor.
    pub ctr: Option<CtrFields>,
}

/// What a new row is made from, and the stamp that touched rows get.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewRow<'a> {
    pub(crate) spec: &'a SparseSpec,
    pub(crate) fans: Fans,
    pub(crate) stamp: u32,
}

impl NewRow<'_> {
    /// The initial weights of a key's row.
    pub(crate) fn first_weights(&self, key: Key, out: &mut [f32]) {
        self.spec.initializer.row(self.spec.seed, key, self.fans, out);
    }

    /// What a pull returns for a key that has no row and gets none: initial values, or zeros if the key is not admitted at
    /// once.
    pub(crate) fn show_absent(&self, layout: &impl RowLayout, key: Key, out: &mut [f32]) {
        if self.spec.admission.at_once(self.spec.seed, key) {
            layout.initial(self, key, out);
        } else {
            out.fill(0.0);
        }
    }
}

/// A push to the shards of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Push<'a> {
    pub(crate) new_row: NewRow<'a>,
    pub(crate) update: Step,
    /// Added to the gradients.
    pub(crate) regularizer: Option<&'a Regularizer>,
    /// Determines, with the key, how narrow weights are rounded in this step.
    pub(crate) rounding: u64,
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

/// One key of a push with a known row: its position in the request, and the number of its row.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Target {
    pub(crate) at: u32,
    pub(crate) row: u32,
}

/// Whether a shrink keeps a row, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retention {
    Keep,
    LowScore,
    Unseen,
}

/// What a shard needs of an accessor. Rows have numbers, which may change when another row is removed.
pub(crate) trait RowLayout {
    /// Floats of a row and of a long part.
    fn widths(&self, spec: &SparseSpec) -> (usize, usize);

    /// Floats at the front of a row that a pull reads.
    fn pulled_floats(&self, dim: usize) -> usize;

    /// Initializes a new row, which is all zeros, with the shows and clicks that led to its admission.
    fn create(&self, rows: &mut Rows, row: u32, new_row: &NewRow<'_>, show: f32, click: f32);

    /// What a pull would return for a row that was just created.
    fn initial(&self, new_row: &NewRow<'_>, key: Key, out: &mut [f32]);

    /// Prefetches the first `floats` floats of a row's long part; the row itself is in the cache.
    fn prefetch_long(&self, _rows: &Rows, _row: u32, _floats: usize) {}

    /// Copies the weights of a row.
    fn pull(&self, rows: &Rows, row: u32, out: &mut [f32]);

    /// Applies the gradients of `targets`, one after another.
    fn push(&self, rows: &mut Rows, push: &Push<'_>, targets: &[Target]);

    /// Whether the end of a day and shrinking change rows that are kept.
    fn decays(&self) -> bool {
        false
    }

    /// A day has passed.
    fn end_of_day(&self, _rows: &mut Rows, _row: u32) {}

    /// Decays a row, and tells whether it is kept.
    fn decay(&self, _rows: &mut Rows, _row: u32) -> Retention {
        Retention::Keep
    }

    /// The row is about to be removed: frees its long part.
    fn release(&self, _rows: &mut Rows, _row: u32) {}

    /// The row has a new number.
    fn renumbered(&self, _rows: &mut Rows, _row: u32) {}

    /// The row as it is saved; `buffer` is for accessors whose weights are not contiguous.
    fn show<'a>(&self, rows: &'a Rows, row: u32, spec: &SparseSpec, buffer: &'a mut Vec<f32>) -> Row<'a>;

    /// Writes weights and state, and the ctr fields if given.
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

/// A layout whose weights differences can be added to directly. Narrow weights cannot: nothing would correct the rounding of a
/// sum whose sender does not read it back.
pub(crate) trait Additive: RowLayout {
    /// Adds to the weights of a row.
    fn add(&self, rows: &mut Rows, row: u32, delta: &[f32]);
}
