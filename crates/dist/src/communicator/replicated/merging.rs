//! Gradient merge: the gradients of several steps, added up before they are applied.

use openfleet_core::Unique;

use super::sparse::add_rows;
use crate::stage::{Counts, DenseStage, SparseStage};

/// Gradients that have not been applied yet.
#[derive(Default)]
pub(super) struct Merging {
    /// Steps whose gradients are in the sums.
    steps: u64,
    /// Per parameter.
    dense: Vec<Vec<f32>>,
    /// Per stage.
    sparse: Vec<MergedStage>,
}

#[derive(Default)]
struct MergedStage {
    /// The keys of each step, in order; the inverse of the last step is at its end.
    unique: Unique,
    /// Per table.
    gradients: Vec<Vec<f32>>,
    counts: Option<Counts>,
}

impl Merging {
    /// Adds the gradients of a step. Returns whether it completes a group of `group` steps.
    pub(super) fn add(&mut self, sparse: &[SparseStage], dense: &[DenseStage], group: u64) -> bool {
        if self.steps == 0 {
            self.dense = dense.iter().map(|stage| vec![0.0; stage.gradient.len()]).collect();
            self.sparse.clear();
            self.sparse.resize_with(sparse.len(), MergedStage::default);
            self.sparse.iter_mut().for_each(|stage| stage.unique.start(0));
        }
        for (sum, stage) in self.dense.iter_mut().zip(dense) {
            sum.iter_mut().zip(&stage.gradient).for_each(|(sum, gradient)| *sum += gradient);
        }
        for (merged, stage) in self.sparse.iter_mut().zip(sparse) {
            merged.add(stage);
        }
        self.steps += 1;
        self.steps == group
    }

    /// Moves the sums into the stages, divided by `divisor`, and begins a new group.
    pub(super) fn take(&mut self, sparse: &mut [SparseStage], dense: &mut [DenseStage], divisor: u64) {
        let scale = 1.0 / divisor as f32;
        for (sum, stage) in self.dense.iter_mut().zip(dense) {
            std::mem::swap(sum, &mut stage.gradient);
            stage.gradient.iter_mut().for_each(|gradient| *gradient *= scale);
        }
        for (merged, stage) in self.sparse.iter_mut().zip(sparse) {
            std::mem::swap(&mut merged.unique, &mut stage.unique);
            for (sum, lookup) in merged.gradients.iter_mut().zip(&mut stage.lookups) {
                std::mem::swap(sum, &mut lookup.gradients);
                lookup.gradients.iter_mut().for_each(|gradient| *gradient *= scale);
            }
            std::mem::swap(&mut merged.counts, &mut stage.counts);
        }
        self.steps = 0;
    }
}

impl MergedStage {
    fn add(&mut self, stage: &SparseStage) {
        let before = self.unique.inverse().len();
        self.unique.add(stage.unique.keys());
        let (keys, inverse) = (self.unique.keys().len(), &self.unique.inverse()[before..]);
        self.gradients.resize_with(stage.lookups.len(), Vec::new);
        for (sum, lookup) in self.gradients.iter_mut().zip(&stage.lookups) {
            sum.resize(keys * lookup.dim, 0.0);
            add_rows(sum, &lookup.gradients, inverse, lookup.dim);
        }
        if let Some(counts) = &stage.counts {
            let sums = self.counts.get_or_insert_default();
            for (sum, count) in [(&mut sums.show, &counts.show), (&mut sums.click, &counts.click)] {
                sum.resize(keys, 0.0);
                add_rows(sum, count, inverse, 1);
            }
        }
    }
}
