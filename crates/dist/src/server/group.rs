//! Sync mode on the server: a step is applied when every live stream has pushed it, and then answered to all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use openfleet_table::Accessor;
use openfleet_table::aggregate::{Aggregate, Arrival, DenseMean, SparseMean, SparsePart};
use openfleet_table::checkpoint::{GroupWork, Work};
use tokio::sync::oneshot;

use super::state::{Outcome, State};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::request::pull_dense::put_values;
use crate::request::push::{self, PushView, PushedStage};

/// The streams that step together: all of the job, or one worker's.
///
/// ```text
///            join (all that have not left for good have asked)
///   away ------------------------------------------------------> member
///    ^                                                              |
///    +------------------------- leave ------------------------------+
/// ```
pub(super) struct Group {
    streams: Range<u32>,
    /// Left for good.
    gone: BTreeSet<u32>,
    /// Have asked to begin a pass.
    joining: BTreeMap<u32, Waiters>,
    /// The newest change of membership that each stream asked for: an older one is a late repeat, and changes nothing.
    changes: BTreeMap<u32, u64>,
    aggregate: Aggregate<Payload>,
    /// Who waits for the current step.
    waiting: BTreeMap<u32, Waiters>,
    /// The last step, if applying it failed: whoever asks again hears so again.
    failed: Option<(u64, String)>,
    /// Steps that each stream has taken part in: batches of its own, while the group's steps go on without it too.
    taken: BTreeMap<u32, u64>,
    /// While servers are brought to one moment: the first step that is not applied before they are.
    limit: Option<u64>,
    dense: DenseMean,
    sparse: BTreeMap<u32, SparseMean>,
}

/// Everybody that waits for the answer to one request: the first who asked and its repeats. All are answered, because which
/// of them came over a connection that still lives cannot be told: a repeat over a new connection may overtake the original
/// that stands in the buffers of the old one.
type Waiters = Vec<oneshot::Sender<Result<Payload>>>;

impl Group {
    pub(super) fn new(streams: Range<u32>) -> Self {
        Group {
            streams,
            gone: BTreeSet::new(),
            joining: BTreeMap::new(),
            changes: BTreeMap::new(),
            aggregate: Aggregate::new([], 0),
            waiting: BTreeMap::new(),
            failed: None,
            taken: BTreeMap::new(),
            limit: None,
            dense: DenseMean::new(),
            sparse: BTreeMap::new(),
        }
    }

    /// Whether a stream is one of this group's.
    pub(super) fn has(&self, stream: u32) -> bool {
        self.streams.contains(&stream)
    }

    /// Where each stream of this group stands: the steps it has taken part in.
    pub(super) fn positions(&self) -> impl Iterator<Item = (u32, u64)> {
        self.streams.clone().map(|stream| (stream, self.taken.get(&stream).copied().unwrap_or(0)))
    }

    /// What has been applied.
    pub(super) fn work(&self) -> GroupWork {
        let streams = (self.streams.start, self.streams.end);
        GroupWork { streams, step: self.aggregate.step(), taken: self.taken.clone() }
    }

    /// Goes on from what a checkpoint says, if it speaks of this group.
    pub(super) fn restore(&mut self, work: &GroupWork) {
        if work.streams == (self.streams.start, self.streams.end) {
            let members: Vec<u32> = self.aggregate.members().collect();
            self.aggregate = Aggregate::new(members, work.step);
            self.taken.clone_from(&work.taken);
        }
    }

    /// Whether a stream is in a pass.
    pub(super) fn is_training(&self) -> bool {
        self.aggregate.members().next().is_some()
    }

    /// Applies no step any more. Pushes are taken all the same.
    pub(super) fn freeze(&mut self) {
        self.limit = Some(self.aggregate.step());
    }

    /// Applies the steps that another server has applied, as far as their pushes are here.
    pub(super) fn go_on_to(&mut self, state: &State, target: &Work) {
        let theirs = target.groups.iter().find(|group| group.streams == (self.streams.start, self.streams.end));
        self.limit = Some(theirs.map_or(self.aggregate.step(), |group| group.step));
        self.apply(state);
    }

    /// Applies steps again.
    pub(super) fn thaw(&mut self, state: &State) {
        self.limit = None;
        self.apply(state);
    }

    /// Whom the current step, or the beginning of a pass, waits for.
    pub(super) fn missing(&self) -> Vec<u32> {
        if self.joining.is_empty() {
            return self.aggregate.missing().collect();
        }
        let away = |stream: &u32| !self.gone.contains(stream) && !self.joining.contains_key(stream);
        self.streams.clone().filter(away).collect()
    }

    /// The step being collected.
    pub(super) fn step(&self) -> u64 {
        self.aggregate.step()
    }

    /// Takes a stream's push of the current step; the answer comes through the receiver.
    pub(super) fn contribute(
        &mut self,
        state: &State,
        stream: u32,
        step: u64,
        payload: Payload,
    ) -> Result<oneshot::Receiver<Result<Payload>>> {
        let (answer, receiver) = oneshot::channel();
        let arrival = self.aggregate.contribute(stream, step, payload).map_err(|source| Error::Table {
            action: "taking a push for",
            table: "all".into(),
            source,
        })?;
        self.waiting.entry(stream).or_default().push(answer);
        if arrival == Arrival::Complete {
            self.apply(state);
        }
        Ok(receiver)
    }

    /// The answer to a push of a step that was taken before.
    pub(super) fn repeat(&self, state: &State, step: u64, payload: &Payload) -> Result<Payload> {
        match &self.failed {
            Some((failed, message)) if *failed == step => Err(Error::Background { message: message.clone() }),
            _ => values_wanted(state, payload),
        }
    }

    /// Whether a change of membership is news, or the same again; not what was overtaken by a later one.
    fn is_newest(&mut self, stream: u32, change: u64) -> bool {
        let newest = self.changes.entry(stream).or_insert(change);
        *newest = change.max(*newest);
        *newest == change
    }

    /// A stream takes part from now on, once all have asked. A repeat by a member is answered at once.
    pub(super) fn join(&mut self, stream: u32, change: u64) -> Outcome {
        let is_member = self.aggregate.members().any(|member| member == stream);
        if is_member || !self.is_newest(stream, change) || self.gone.contains(&stream) {
            return Outcome::Now(Ok(self.step_payload()));
        }
        let (answer, receiver) = oneshot::channel();
        self.joining.entry(stream).or_default().push(answer);
        self.admit_if_all();
        Outcome::Later(receiver)
    }

    /// A stream takes part no more in this pass; the step may be complete without it.
    pub(super) fn leave(&mut self, state: &State, stream: u32, change: u64) {
        if self.is_newest(stream, change) && self.aggregate.leave(stream) {
            self.apply(state);
        }
    }

    /// A stream takes part never again; a join may be complete without it, too.
    pub(super) fn depart(&mut self, state: &State, stream: u32) {
        self.gone.insert(stream);
        self.joining.remove(&stream);
        if self.aggregate.leave(stream) {
            self.apply(state);
        }
        self.admit_if_all();
    }

    fn admit_if_all(&mut self) {
        let ready =
            self.streams.clone().all(|stream| self.gone.contains(&stream) || self.joining.contains_key(&stream));
        if !ready {
            return;
        }
        for (stream, answers) in std::mem::take(&mut self.joining) {
            self.aggregate.join(stream);
            for answer in answers {
                let _ = answer.send(Ok(self.step_payload()));
            }
        }
    }

    fn step_payload(&self) -> Payload {
        let mut payload = Payload::new();
        payload.put(&[self.aggregate.step()]);
        payload
    }

    fn apply(&mut self, state: &State) {
        let step = self.aggregate.step();
        if self.limit.is_some_and(|limit| step >= limit) {
            return;
        }
        let Some(contributions) = self.aggregate.take() else { return };
        let outcome = self.apply_contributions(state, &contributions);
        self.failed = outcome.err().map(|message| (step, message));
        contributions.keys().for_each(|&stream| *self.taken.entry(stream).or_insert(0) += 1);
        for (stream, answers) in std::mem::take(&mut self.waiting) {
            for answer in answers {
                let reply = match contributions.get(&stream) {
                    Some(payload) => self.repeat(state, step, payload),
                    None => Ok(Payload::new()),
                };
                // Whoever is gone by now asks again when it is back.
                let _ = answer.send(reply);
            }
        }
    }

    /// All gradients in the order of the streams, divided by how many took part.
    fn apply_contributions(
        &mut self,
        state: &State,
        contributions: &BTreeMap<u32, Payload>,
    ) -> std::result::Result<(), String> {
        let took_part = contributions.len();
        let text = |error: Error| openfleet_core::error::report(&error);
        let views = contributions
            .values()
            .map(|payload| PushView::decode(payload.bytes()))
            .collect::<Result<Vec<_>>>()
            .map_err(text)?;
        // Table number -> (keys, gradients) of each stream, in order.
        let mut tables: BTreeMap<u32, Vec<SparsePart<'_>>> = BTreeMap::new();
        let mut blocks: BTreeMap<u32, Vec<&[f32]>> = BTreeMap::new();
        for view in &views {
            for PushedStage { keys, gradients, show_click } in &view.stages {
                for (&table, gradients) in keys.tables.iter().zip(gradients) {
                    let part = SparsePart { keys: keys.keys, gradients, show_click: *show_click };
                    tables.entry(table).or_default().push(part);
                }
            }
            for (block, gradient) in &view.blocks {
                blocks.entry(*block).or_default().push(gradient);
            }
        }
        let mut scratch = state.scratch();
        for (number, parts) in tables {
            let table = state.sparse(number).map_err(text)?;
            let new_mean = || match table.table.spec().accessor {
                Accessor::Plain => SparseMean::new(table.table.dim()),
                Accessor::Ctr(_) => SparseMean::counting(table.table.dim()),
            };
            let mean = self.sparse.entry(number).or_insert_with(new_mean);
            let merged = mean.mean(took_part, parts).map_err(|e| text(table.error("merging pushes to", e)))?;
            table
                .table
                .push_with(merged.keys, merged.gradients, merged.show_click, &mut scratch)
                .map_err(|e| text(table.error("pushing to", e)))?;
        }
        state.put_scratch(scratch);
        for (number, gradients) in blocks {
            let block = state.dense(number).map_err(text)?;
            let mean = self
                .dense
                .mean(took_part, gradients.iter().copied())
                .map_err(|e| text(block.error("merging pushes to", e)))?;
            block.table.push(mean).map_err(|e| text(block.error("pushing to", e)))?;
        }
        Ok(())
    }
}

/// The values that a push asked for.
pub(super) fn values_wanted(state: &State, payload: &Payload) -> Result<Payload> {
    let (width, blocks) = push::wanted(payload.bytes())?;
    let mut reply = Payload::new();
    put_values(state, width, blocks.into_iter(), &mut reply)?;
    Ok(reply)
}
