//! The worker's side of a table: the rows it is about to read and the gradients it is about to send.
//!
//! Stages belong to one training thread and live as long as it does, so a step allocates nothing after warm-up. A stage refers
//! to its tables by position; the communicator was built with the same list.
//!
//! U unique keys of the batch, D dim of a row.

use openfleet_core::Unique;
use openfleet_table::sparse::Scratch;
use openfleet_table::{ShowClick, clip};

/// The rows of one table for the unique keys of a stage.
#[derive(Debug, Default)]
pub struct Lookup {
    /// Position among the communicator's sparse tables.
    pub table: usize,
    /// D, the number of weights per row.
    pub dim: usize,
    /// Whether gradients are pushed; frozen tables are only read.
    pub trained: bool,
    /// U x D: the rows as pulled.
    pub rows: Vec<f32>,
    /// U x D: the gradients to push.
    pub gradients: Vec<f32>,
}

/// The unique keys of some slots of a batch, and all tables that are looked up with exactly these slots.
///
/// Tables that share their slots (such as a wide and a deep part) share one deduplication and one list of keys.
#[derive(Debug, Default)]
pub struct SparseStage {
    /// The unique keys, and for each id of the batch the position of its key.
    pub unique: Unique,
    /// One entry per table.
    pub lookups: Vec<Lookup>,
    /// Shows and clicks per key, if the tables' rows count them.
    pub counts: Option<Counts>,
    /// Working memory for the tables.
    pub scratch: Scratch,
}

/// Shows and clicks of the unique keys of a stage.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// U: number of samples with the key.
    pub show: Vec<f32>,
    /// U: number of those samples with a click.
    pub click: Vec<f32>,
}

impl Counts {
    /// The counts as a push takes them.
    pub fn view(&self) -> ShowClick<'_> {
        ShowClick { show: &self.show, click: &self.click }
    }
}

/// Calls `show` with every gradient that is pushed, dense parameters first.
pub fn each_gradient(sparse: &mut [SparseStage], dense: &mut [DenseStage], mut show: impl FnMut(&mut [f32])) {
    dense.iter_mut().filter(|stage| stage.trained).for_each(|stage| show(&mut stage.gradient));
    let lookups = sparse.iter_mut().flat_map(|stage| &mut stage.lookups);
    lookups.filter(|lookup| lookup.trained).for_each(|lookup| show(&mut lookup.gradients));
}

/// Scales all gradients by one factor, so that their global norm is at most `norm`.
pub fn clip_global_norm(sparse: &mut [SparseStage], dense: &mut [DenseStage], norm: f32) {
    let mut total = 0.0;
    each_gradient(sparse, dense, |gradient| total += clip::sum_of_squares(gradient));
    let factor = clip::global_scale(total, norm);
    if factor < 1.0 {
        each_gradient(sparse, dense, |gradient| clip::scale(gradient, factor));
    }
}

/// The worker's copy of one dense parameter, and its gradient.
#[derive(Debug, Default)]
pub struct DenseStage {
    /// Position among the communicator's dense tables.
    pub table: usize,
    /// The values that the thread computes with.
    pub values: Vec<f32>,
    /// The gradient to push.
    pub gradient: Vec<f32>,
    /// Whether the gradient is pushed; frozen parameters are only read.
    pub trained: bool,
    /// The version of the table that `values` is a copy of; 0 if there are no values yet.
    pub version: u64,
}
