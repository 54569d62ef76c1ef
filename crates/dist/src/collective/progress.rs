//! How many batches of each program the ranks have trained, and which ones a restarted rank skips.
//!
//! The counters belong to the job, not to an executor or a compiled program: a script may create several of both, and a
//! restarted script counts its batches in the same order.

use std::collections::HashMap;

use crate::communicator::Step;

/// The counters of all programs.
#[derive(Default)]
pub(super) struct Progress(HashMap<u64, Batches>);

/// The batches of one program.
struct Batches {
    /// Batches that this rank has begun, including those that it skipped.
    begun: u64,
    /// Of those and later ones: how many a checkpoint includes, so that they are not trained again.
    included: u64,
    /// Batches that each rank has trained and whose updates are applied, in rank order.
    applied: Vec<u64>,
}

impl Progress {
    fn of(&mut self, program: u64, ranks: usize) -> &mut Batches {
        self.0.entry(program).or_insert_with(|| Batches { begun: 0, included: 0, applied: vec![0; ranks] })
    }

    /// This rank begins its next batch.
    pub(super) fn begin(&mut self, program: u64, ranks: usize) -> Step {
        let batches = self.of(program, ranks);
        batches.begun += 1;
        Step { number: batches.begun - 1, is_applied: batches.begun <= batches.included }
    }

    /// A batch that was begun has failed before it changed anything: it may be begun again.
    pub(super) fn take_back(&mut self, program: u64, ranks: usize) {
        let batches = self.of(program, ranks);
        batches.begun = batches.begun.saturating_sub(1);
    }

    /// Each rank has applied as many more batches.
    pub(super) fn apply(&mut self, program: u64, more: &[u64]) {
        self.of(program, more.len()).applied.iter_mut().zip(more).for_each(|(applied, more)| *applied += more);
    }

    /// Batches that each rank has trained, in rank order.
    pub(super) fn applied(&mut self, program: u64, ranks: usize) -> Vec<u64> {
        self.of(program, ranks).applied.clone()
    }

    /// The values of a checkpoint were loaded, which includes as many batches of each rank: `rank` skips its own.
    pub(super) fn resume(&mut self, program: u64, rank: usize, ranks: usize, applied: &[u64]) {
        let mut applied = applied.to_vec();
        // A checkpoint may be of fewer ranks.
        applied.resize(ranks, 0);
        self.0.insert(program, Batches { begun: 0, included: applied[rank], applied });
    }

    /// Whether batches are still skipped.
    pub(super) fn replays(&self) -> bool {
        self.0.values().any(|batches| batches.begun < batches.included)
    }

    /// Why a restarted job cannot return to a checkpoint of this program that `rank` saves now; `None` if it can. `averages`:
    /// ranks train alone between two averages of their parameters.
    pub(super) fn obstacle(&self, program: u64, rank: usize, averages: bool) -> Option<&'static str> {
        let batches = self.0.get(&program)?;
        if self.0.iter().any(|(&other, batches)| other != program && batches.begun > 0) {
            return Some("the job has trained another program too, which the checkpoint does not include");
        }
        let is_alone = averages && batches.begun.max(batches.included) > batches.applied[rank];
        is_alone.then_some("it was saved between two averages of the parameters of all ranks")
    }
}
