//! Sync mode on the server: a step is applied when every live stream has pushed it, and then answered to all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use openfleet_table::aggregate::{Aggregate, Arrival, DenseMean, SparseMean, SparsePart};
use tokio::sync::oneshot;

use super::state::{Outcome, State};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::request::pull_dense::put_values;
use crate::request::push::PushView;

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
    /// Have asked to begin a pass; a repeat takes the first one's place.
    joining: BTreeMap<u32, oneshot::Sender<Result<Payload>>>,
    aggregate: Aggregate<Payload>,
    /// Who waits for the current step; a repeat takes the first one's place.
    waiting: BTreeMap<u32, oneshot::Sender<Result<Payload>>>,
    dense: DenseMean,
    sparse: BTreeMap<u32, SparseMean>,
}

impl Group {
    pub(super) fn new(streams: Range<u32>) -> Self {
        Group {
            streams,
            gone: BTreeSet::new(),
            joining: BTreeMap::new(),
            aggregate: Aggregate::new([], 0),
            waiting: BTreeMap::new(),
            dense: DenseMean::new(),
            sparse: BTreeMap::new(),
        }
    }

    /// Whether a stream is one of this group's.
    pub(super) fn has(&self, stream: u32) -> bool {
        self.streams.contains(&stream)
    }

    /// The streams of this group.
    pub(super) fn streams(&self) -> Range<u32> {
        self.streams.clone()
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
        self.waiting.insert(stream, answer);
        if arrival == Arrival::Complete {
            self.apply(state);
        }
        Ok(receiver)
    }

    /// A stream takes part from now on, once all have asked. A repeat by a member is answered at once.
    pub(super) fn join(&mut self, stream: u32) -> Outcome {
        if self.aggregate.members().any(|member| member == stream) {
            return Outcome::Now(Ok(self.step_payload()));
        }
        let (answer, receiver) = oneshot::channel();
        self.joining.insert(stream, answer);
        self.admit_if_all();
        Outcome::Later(receiver)
    }

    /// A stream takes part no more; the step may be complete without it, and so may a join.
    pub(super) fn leave(&mut self, state: &State, stream: u32, for_good: bool) {
        if for_good {
            self.gone.insert(stream);
            self.joining.remove(&stream);
        }
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
        for (stream, answer) in std::mem::take(&mut self.joining) {
            self.aggregate.join(stream);
            let _ = answer.send(Ok(self.step_payload()));
        }
    }

    fn step_payload(&self) -> Payload {
        let mut payload = Payload::new();
        payload.put(&[self.aggregate.step()]);
        payload
    }

    fn apply(&mut self, state: &State) {
        let Some(contributions) = self.aggregate.take() else { return };
        let outcome = self.apply_contributions(state, &contributions);
        let waiting = std::mem::take(&mut self.waiting);
        for (stream, answer) in waiting {
            let reply = match (&outcome, contributions.get(&stream)) {
                (Err(message), _) => Err(Error::Background { message: message.clone() }),
                (Ok(()), Some(payload)) => values_wanted(state, payload),
                (Ok(()), None) => Ok(Payload::new()),
            };
            // Whoever is gone by now asks again when it is back.
            let _ = answer.send(reply);
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
            for (keys, gradients) in &view.stages {
                for (&table, &gradients) in keys.tables.iter().zip(gradients) {
                    let part = SparsePart { keys: keys.keys, gradients, show_click: None };
                    tables.entry(table).or_default().push(part);
                }
            }
            for &(block, gradient) in &view.blocks {
                blocks.entry(block).or_default().push(gradient);
            }
        }
        let mut scratch = state.scratch();
        for (number, parts) in tables {
            let table = state.sparse(number).map_err(text)?;
            let mean = self.sparse.entry(number).or_insert_with(|| SparseMean::new(table.table.dim()));
            let merged = mean.mean(took_part, parts).map_err(|e| text(table.error("merging pushes to", e)))?;
            table
                .table
                .push(merged.keys, merged.gradients, &mut scratch)
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
    let view = PushView::decode(payload.bytes())?;
    let mut reply = Payload::new();
    if view.want_values {
        put_values(state, view.blocks.iter().map(|&(block, _)| block), &mut reply)?;
    }
    Ok(reply)
}
