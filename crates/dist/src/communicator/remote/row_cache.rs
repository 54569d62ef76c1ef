//! Rows that a worker uses again instead of pulling them again, for a bounded number of batches.
//!
//! The rows of frequent keys are needed by almost every batch. A worker that may train with older rows pulls a row once, uses it for
//! up to `staleness` more batches of this worker, and then pulls it again. Gradients are pushed as before. Only rows that were used
//! recently are kept, so the memory is bounded by that of `staleness` batches.
//!
//! Such rows lack the gradients of other workers and also this worker's own. Modes that promise newer rows do not use it: in sync
//! mode every row that a batch has used is changed by the step of that batch, so no row could be used twice.

use std::collections::{HashMap, VecDeque};

use openfleet_core::key::KeyMap;
use parking_lot::Mutex;

use crate::stage::{Lookup, SparseStage};

/// The cache of one program's tables.
pub(super) struct RowCache {
    staleness: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of pulls so far.
    pulls: u64,
    /// By the tables of a stage: tables that are looked up with the same keys are pulled together.
    stages: HashMap<Vec<usize>, CachedRows>,
}

/// The rows that one kind of stage has pulled recently.
#[derive(Default)]
struct CachedRows {
    places: KeyMap<Place>,
    /// Per lookup: the rows, at their places.
    rows: Vec<Vec<f32>>,
    /// Places that are not used any more.
    free: Vec<u32>,
    /// The keys of recent pulls in the order in which they ended, with the number of the pull.
    pulled: VecDeque<(u64, Vec<u64>)>,
}

#[derive(Clone, Copy)]
struct Place {
    at: u32,
    /// Number of the pull that the row is from.
    pull: u64,
}

/// A pull, divided into what is cached and what has to be requested.
pub(super) struct DividedPull {
    number: u64,
    /// Stages with the keys that are not cached.
    pub(super) requested: Vec<SparseStage>,
    cached: Vec<CachedPart>,
}

/// The part of a stage that was cached when the pull began.
#[derive(Default)]
struct CachedPart {
    /// Positions among the stage's unique keys: of cached rows, and of requested ones.
    positions: Vec<usize>,
    requested: Vec<usize>,
    /// Per lookup: the cached rows.
    rows: Vec<Vec<f32>>,
}

impl RowCache {
    pub(super) fn new(staleness: u64) -> Self {
        RowCache { staleness, state: Mutex::default() }
    }

    /// Forgets all rows.
    pub(super) fn clear(&self) {
        self.state.lock().stages.clear();
    }

    /// Divides the keys of the stages, and copies the cached rows.
    pub(super) fn divide(&self, stages: &[SparseStage]) -> DividedPull {
        let mut state = self.state.lock();
        let number = state.pulls;
        state.pulls += 1;
        let (mut requested, mut cached) = (Vec::with_capacity(stages.len()), Vec::with_capacity(stages.len()));
        for stage in stages {
            let rows = state.stages.entry(tables_of(stage)).or_default();
            let oldest = number.saturating_sub(self.staleness);
            rows.expire(oldest);
            let part = rows.find(stage, oldest);
            requested.push(stage_of(stage, &part.requested));
            cached.push(part);
        }
        DividedPull { number, requested, cached }
    }

    /// Fills the rows of the stages that were divided, and keeps those that were requested.
    pub(super) fn join(&self, pull: DividedPull, stages: &mut [SparseStage]) {
        for ((stage, requested), part) in stages.iter_mut().zip(&pull.requested).zip(&pull.cached) {
            for (at, lookup) in stage.lookups.iter_mut().enumerate() {
                copy_rows(&part.rows[at], &part.positions, lookup);
                copy_rows(&requested.lookups[at].rows, &part.requested, lookup);
            }
        }
        let mut state = self.state.lock();
        for requested in pull.requested {
            if let Some(rows) = state.stages.get_mut(&tables_of(&requested)) {
                rows.keep(pull.number, &requested);
            }
        }
    }
}

impl CachedRows {
    /// Frees rows of pulls before this one. A pull that ended after a newer one of another thread is freed with that one.
    fn expire(&mut self, oldest: u64) {
        while let Some((pull, keys)) = self.pulled.pop_front_if(|(pull, _)| *pull < oldest) {
            for key in keys {
                if self.places.get(&key).is_some_and(|place| place.pull == pull)
                    && let Some(place) = self.places.remove(&key)
                {
                    self.free.push(place.at);
                }
            }
        }
    }

    /// Copies the rows of pulls from `oldest` on.
    fn find(&self, stage: &SparseStage, oldest: u64) -> CachedPart {
        let mut part = CachedPart { rows: vec![Vec::new(); stage.lookups.len()], ..CachedPart::default() };
        for (position, key) in stage.unique.keys().iter().enumerate() {
            let Some(place) = self.places.get(key).filter(|place| place.pull >= oldest) else {
                part.requested.push(position);
                continue;
            };
            part.positions.push(position);
            for (lookup, (copied, rows)) in stage.lookups.iter().zip(part.rows.iter_mut().zip(&self.rows)) {
                copied.extend_from_slice(&rows[place.at as usize * lookup.dim..][..lookup.dim]);
            }
        }
        part
    }

    fn keep(&mut self, pull: u64, stage: &SparseStage) {
        self.rows.resize_with(stage.lookups.len(), Vec::new);
        for (position, &key) in stage.unique.keys().iter().enumerate() {
            // Another thread may have pulled the row meanwhile: the newer one is kept.
            let known = self.places.get(&key).copied();
            if known.is_some_and(|place| place.pull > pull) {
                continue;
            }
            let at = known.map(|place| place.at).or_else(|| self.free.pop()).unwrap_or(self.places.len() as u32);
            self.places.insert(key, Place { at, pull });
            for (lookup, rows) in stage.lookups.iter().zip(&mut self.rows) {
                let (begin, end) = (at as usize * lookup.dim, (at as usize + 1) * lookup.dim);
                if rows.len() < end {
                    rows.resize(end, 0.0);
                }
                rows[begin..end].copy_from_slice(&lookup.rows[position * lookup.dim..][..lookup.dim]);
            }
        }
        self.pulled.push_back((pull, stage.unique.keys().to_vec()));
    }
}

fn tables_of(stage: &SparseStage) -> Vec<usize> {
    stage.lookups.iter().map(|lookup| lookup.table).collect()
}

/// A stage with some of another stage's keys, and room for their rows.
fn stage_of(stage: &SparseStage, positions: &[usize]) -> SparseStage {
    let mut part = SparseStage::default();
    let keys: Vec<u64> = positions.iter().map(|&position| stage.unique.keys()[position]).collect();
    part.unique.start(keys.len());
    part.unique.add(&keys);
    let lookup = |&Lookup { table, dim, .. }: &Lookup| Lookup {
        table,
        dim,
        rows: vec![0.0; keys.len() * dim],
        ..Lookup::default()
    };
    part.lookups = stage.lookups.iter().map(lookup).collect();
    part
}

fn copy_rows(from: &[f32], positions: &[usize], into: &mut Lookup) {
    for (row, &position) in from.chunks_exact(into.dim.max(1)).zip(positions) {
        into.rows[position * into.dim..][..into.dim].copy_from_slice(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(keys: &[u64]) -> SparseStage {
        let mut stage = SparseStage::default();
        stage.unique.start(keys.len());
        stage.unique.add(keys);
        stage.lookups = vec![Lookup { table: 0, dim: 1, rows: vec![0.0; keys.len()], ..Lookup::default() }];
        stage
    }

    #[test]
    fn a_row_is_not_used_longer_if_its_pull_ends_after_that_of_another_thread() {
        let cache = RowCache::new(1);
        let (mut first, mut second) = ([stage(&[7])], [stage(&[8])]);
        let (older, newer) = (cache.divide(&first), cache.divide(&second));
        cache.join(newer, &mut second);
        cache.join(older, &mut first);
        let next = cache.divide(&[stage(&[7, 8])]);
        assert_eq!(next.requested[0].unique.keys(), [7], "two pulls old; that of id 8 is one pull old");
    }
}
