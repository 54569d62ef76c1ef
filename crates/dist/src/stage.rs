//! The worker's side of a table: what it is about to read, and what it is about to send.
//!
//! Stages belong to one training thread and live as long as it does, so a warm step allocates nothing. A stage names
//! its tables by position: the communicator was built with the same list.
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
    /// D.
    pub dim: usize,
    /// Whether gradients are pushed; frozen tables are only read.
    pub trained: bool,
    /// U x D: the rows as pulled.
    pub rows: Vec<f32>,
    /// U x D: the gradients to push.
    pub gradients: Vec<f32>,
}

/// The unique keys of some slots of a batch, and every table that is looked up with just these slots.
///
/// Tables that share their slots (a wide and a deep part, say) share one de-duplication and one list of keys.
#[derive(Debug, Default)]
pub struct SparseStage {
    /// The keys and, per id of the batch, which of them it is.
    pub unique: Unique,
    /// One entry a table.
    pub lookups: Vec<Lookup>,
    /// What is behind each key, where rows count it.
    pub counts: Option<Counts>,
    /// Working memory of the tables' own.
    pub scratch: Scratch,
}

/// Shows and clicks of the unique keys of a stage.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// U: samples with the key.
    pub show: Vec<f32>,
    /// U: those of them with a click.
    pub click: Vec<f32>,
}

impl Counts {
    /// For a push.
    pub fn view(&self) -> ShowClick<'_> {
        ShowClick { show: &self.show, click: &self.click }
    }
}

/// Shows every gradient that is pushed: of dense parameters first.
pub fn each_gradient(sparse: &mut [SparseStage], dense: &mut [DenseStage], mut show: impl FnMut(&mut [f32])) {
    dense.iter_mut().filter(|stage| stage.trained).for_each(|stage| show(&mut stage.gradient));
    let lookups = sparse.iter_mut().flat_map(|stage| &mut stage.lookups);
    lookups.filter(|lookup| lookup.trained).for_each(|lookup| show(&mut lookup.gradients));
}

/// Scales all gradients by one factor, down to this norm of them all.
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
    /// The values the thread computes with.
    pub values: Vec<f32>,
    /// The gradient to push.
    pub gradient: Vec<f32>,
    /// Whether the gradient is pushed; frozen parameters are only read.
    pub trained: bool,
    /// Which version of the table `values` is a copy of.
    pub version: u64,
}
