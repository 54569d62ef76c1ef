//! Rows that are looked up for another library: now, or ahead for a later batch.
//!
//! U distinct ids, N ids, D dim of a row.

use std::collections::VecDeque;
use std::mem;

use openfleet_core::{Key, Unique};
use openfleet_dist::communicator::Missing;
use openfleet_dist::stage::{Lookup, SparseStage};
use tracing::warn;

use super::Plan;
use super::prepare::check_vocabulary;
use crate::error::{Error, Result};
use crate::graph::Var;
use crate::memory::{NextRows, ValueLocation};

/// The rows of some ids of one table.
#[derive(Debug, Default)]
pub struct LookedUp {
    /// U: the distinct ids, in the order of their first occurrence.
    pub keys: Vec<Key>,
    /// N: for each id, the position of its row.
    pub positions: Vec<u32>,
    /// U x D: the rows.
    pub rows: Vec<f32>,
    /// D.
    pub dim: usize,
}

/// What is kept between lookups.
#[derive(Default)]
pub(crate) struct Lookups {
    /// Working memory.
    free: Vec<SparseStage>,
    /// What the next batches will look up, the oldest first.
    ahead: VecDeque<LookUpAhead>,
}

/// Ids that a later batch will look up in training, and how far their rows are.
pub(super) struct LookUpAhead {
    /// The table and the ids of each stage.
    ids: Vec<(Var, Vec<Key>)>,
    pub(super) stages: Vec<SparseStage>,
    pub(super) rows: NextRows,
}

impl LookUpAhead {
    /// Whether it has all of these ids.
    fn has(&self, wanted: &[(Var, &[Key])]) -> bool {
        wanted.iter().all(|wanted| self.position(wanted).is_some())
    }

    fn position(&self, &(table, ids): &(Var, &[Key])) -> Option<usize> {
        self.ids.iter().position(|kept| kept.0 == table && kept.1 == ids)
    }
}

/// Batches that are known ahead: the one that is trained, and the next.
const BATCHES_AHEAD: usize = 2;

impl Lookups {
    /// What the next push can return the rows of.
    pub(super) fn next(&mut self) -> Option<&mut LookUpAhead> {
        // Rows that were pulled before this step, and not used, lack its gradients.
        for ahead in self.ahead.iter_mut().filter(|ahead| matches!(ahead.rows, NextRows::Pulled)) {
            ahead.rows = NextRows::Prepared;
        }
        self.ahead.iter_mut().find(|ahead| matches!(ahead.rows, NextRows::Prepared))
    }
}

impl Plan {
    /// Prepares the lookups of a later batch. Its rows are requested now if the communicator overlaps pulls with computing, or come
    /// with the next push if the communicator returns rows with pushes. Otherwise they are pulled when they are looked up.
    pub(crate) fn look_ahead(&self, lookups: &mut Lookups, wanted: &[(Var, &[Key])]) -> Result<()> {
        if !self.reads_ahead() {
            return Ok(());
        }
        while lookups.ahead.len() >= BATCHES_AHEAD {
            if let Some(unused) = lookups.ahead.pop_front() {
                self.tell_unused(&unused);
                lookups.free.extend(unused.stages);
            }
        }
        let stages = self.stages_of("look_ahead", &mut lookups.free, wanted)?;
        let rows = match self.communicator.begin_pull(&stages)? {
            Some(pull) => NextRows::Requested(pull),
            None => NextRows::Prepared,
        };
        let ids = wanted.iter().map(|&(table, ids)| (table, ids.to_vec())).collect();
        lookups.ahead.push_back(LookUpAhead { ids, stages, rows });
        Ok(())
    }

    /// Says once that rows were requested for nothing.
    fn tell_unused(&self, unused: &LookUpAhead) {
        if let Some((table, ids)) = unused.ids.first()
            && self.is_first_warning("unused lookups")
        {
            let (count, table) = (ids.len(), self.name(*table));
            warn!(
                "{count} ids of `{table}` were looked up ahead, and not used: the next two batches looked up other ids"
            );
        }
    }

    /// Pulls the rows of the ids of some tables, in one request to each server, or takes those that were looked up ahead.
    pub(crate) fn look_up(
        &self,
        lookups: &mut Lookups,
        wanted: &[(Var, &[Key])],
        missing: Missing,
    ) -> Result<Vec<LookedUp>> {
        if missing == Missing::Create
            && let Some(found) = self.take_ahead(lookups, wanted)?
        {
            return Ok(found);
        }
        let mut stages = self.stages_of("look_up", &mut lookups.free, wanted)?;
        let pulled = self.communicator.pull_sparse(&mut stages, missing);
        let found = stages.iter_mut().map(looked_up).collect();
        lookups.free.append(&mut stages);
        pulled?;
        Ok(found)
    }

    /// Takes rows that were looked up ahead, and waits for them; `None` if other ids were.
    fn take_ahead(&self, lookups: &mut Lookups, wanted: &[(Var, &[Key])]) -> Result<Option<Vec<LookedUp>>> {
        let Some(at) = lookups.ahead.iter().position(|ahead| ahead.has(wanted)) else { return Ok(None) };
        let ahead = &mut lookups.ahead[at];
        let arrived = match mem::replace(&mut ahead.rows, NextRows::Pulled) {
            NextRows::Pulled => Ok(()),
            NextRows::Requested(pull) => self.communicator.end_pull(pull, &mut ahead.stages),
            NextRows::Unknown | NextRows::Prepared => self.communicator.pull_sparse(&mut ahead.stages, Missing::Create),
        };
        if let Err(error) = arrived {
            lookups.ahead.remove(at);
            return Err(error.into());
        }
        let mut found = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            // Ids that are wanted more often than they were named are pulled now.
            let Some(stage) = ahead.position(wanted) else { return Ok(None) };
            ahead.ids.remove(stage);
            let mut stage = ahead.stages.remove(stage);
            found.push(looked_up(&mut stage));
            lookups.free.push(stage);
        }
        if ahead.ids.is_empty() {
            lookups.ahead.remove(at);
        }
        Ok(Some(found))
    }

    /// Deduplicates ids, in one stage for each table that is wanted.
    fn stages_of(
        &self,
        op: &'static str,
        free: &mut Vec<SparseStage>,
        wanted: &[(Var, &[Key])],
    ) -> Result<Vec<SparseStage>> {
        let mut used = Vec::with_capacity(wanted.len());
        for &(table, ids) in wanted {
            let (number, lookup) = self.stage_of(op, table)?;
            let spec = &self.stages[number];
            let feed = &self.feeds[spec.feeds[0]];
            if let Some(vocabulary) = feed.vocabulary {
                check_vocabulary(&feed.name, vocabulary, ids, &[0, ids.len() as u32])?;
            }
            let (table, dim) = spec.lookups[lookup];
            let kept = free.iter().position(|stage| stage.lookups[0].table == table);
            let mut stage = kept.map_or_else(|| self.stage_of_one(table, dim), |at| free.swap_remove(at));
            stage.unique.start(ids.len());
            stage.unique.add_salted(ids, spec.salts[0]);
            stage.lookups[0].rows.resize(stage.unique.keys().len() * dim, 0.0);
            used.push(stage);
        }
        Ok(used)
    }

    fn stage_of_one(&self, table: usize, dim: usize) -> SparseStage {
        let lookup = Lookup { table, dim, trained: self.trains, rows: Vec::new(), gradients: Vec::new() };
        SparseStage { unique: Unique::new(), lookups: vec![lookup], counts: None, scratch: Default::default() }
    }

    /// Sets the weights of ids that have no row yet; other rows stay as they are.
    pub(crate) fn put_rows(&self, table: Var, ids: &[Key], rows: &[f32]) -> Result<()> {
        let (number, lookup) = self.stage_of("put_rows", table)?;
        let spec = &self.stages[number];
        let (number, dim) = spec.lookups[lookup];
        let refused = |expected: &str, got: String| {
            let expected = format!("{expected} of `{}`", self.name(table));
            Err(Error::Input { op: "put_rows", expected, got })
        };
        if rows.len() != ids.len() * dim {
            return refused(&format!("{} rows of {dim} floats", ids.len()), format!("{} floats", rows.len()));
        }
        if let Some(at) = rows.iter().position(|weight| !weight.is_finite()) {
            return refused("finite weights", format!("{} in the row of id {}", rows[at], ids[at / dim] as i64));
        }
        let mut keys = Unique::new();
        keys.start(ids.len());
        keys.add_salted(ids, spec.salts[0]);
        if keys.keys().len() != ids.len() {
            return refused("distinct ids", format!("{} ids, {} of them distinct", ids.len(), keys.keys().len()));
        }
        Ok(self.communicator.put_rows(number, keys.keys(), rows)?)
    }

    /// The ids that have a row, sorted as unsigned numbers.
    pub(crate) fn ids(&self, table: Var) -> Result<Vec<Key>> {
        let (number, lookup) = self.stage_of("ids", table)?;
        let spec = &self.stages[number];
        let mut ids = self.communicator.keys(spec.lookups[lookup].0)?;
        ids.iter_mut().for_each(|key| *key ^= spec.salts[0]);
        ids.sort_unstable();
        Ok(ids)
    }

    /// The stage and lookup of a table.
    pub(super) fn stage_of(&self, op: &'static str, table: Var) -> Result<(usize, usize)> {
        match self.locations.get(table.index()) {
            Some(&Some(ValueLocation::Rows { stage, lookup })) => Ok((stage, lookup)),
            _ => Err(self.not_known(op, table, "a sparse table of the program")),
        }
    }
}

fn looked_up(stage: &mut SparseStage) -> LookedUp {
    LookedUp {
        keys: stage.unique.keys().to_vec(),
        positions: stage.unique.inverse().to_vec(),
        rows: mem::take(&mut stage.lookups[0].rows),
        dim: stage.lookups[0].dim,
    }
}
