//! Consecutive pushes of a stream as one: the sum of their gradients, numbered with all their steps.

use std::collections::VecDeque;

use openfleet_core::WorkId;
use openfleet_table::aggregate::{DenseMean, SparseMean, SparsePart};

use crate::error::{Error, Result};
use crate::frame::{Payload, PayloadPool};
use crate::gradients::{Counts, Head, PushEncoder, PushView, PushedStage};
use crate::stage::{DenseStage, SparseStage};

/// One push, encoded once per server.
pub(super) struct Item {
    pub(super) work: WorkId,
    pub(super) payloads: Vec<Payload>,
    /// The tables and parameters that it changes: pushes of another program are not merged with it.
    pub(super) tables: Vec<usize>,
    /// Some servers have applied the step and others have not. Such a push is never merged: a server that has applied a part of
    /// a merged push cannot take that part out of the sum.
    pub(super) alone: bool,
}

impl Item {
    /// Whether `next` is the following step and can be merged with this one.
    pub(super) fn precedes(&self, next: &Item) -> bool {
        let follows = self.work.last_step + 1 == next.work.first_step;
        follows && !self.alone && !next.alone && self.tables == next.tables
    }
}

/// What a push changes: per stage the number of tables and their positions, then the parameters.
pub(super) fn tables_of(sparse: &[SparseStage], dense: &[DenseStage]) -> Vec<usize> {
    let mut tables = Vec::new();
    for stage in sparse {
        let trained = stage.lookups.iter().filter(|lookup| lookup.trained).map(|lookup| lookup.table);
        tables.push(trained.clone().count());
        tables.extend(trained);
    }
    tables.extend(dense.iter().filter(|stage| stage.trained).map(|stage| stage.table));
    tables
}

/// Takes the first pushes of a stream that can be merged: consecutive steps, at most `most` of them. A push that must not be
/// merged is taken alone.
pub(super) fn take_mergeable(queue: &mut VecDeque<Item>, stream: u32, most: usize) -> Vec<Item> {
    let mut taken: Vec<Item> = Vec::new();
    let mut at = 0;
    while at < queue.len() && taken.len() < most {
        if queue[at].work.stream != stream {
            at += 1;
            continue;
        }
        if taken.last().is_some_and(|last| !last.precedes(&queue[at])) {
            break;
        }
        taken.extend(queue.remove(at));
    }
    taken
}

/// Merges several pushes of a stream into one: the sum of their gradients, numbered with all their steps.
pub(super) fn merge(items: Vec<Item>, pool: &PayloadPool) -> Result<Vec<Payload>> {
    let (Some(first), Some(last)) = (items.first(), items.last()) else { return Ok(Vec::new()) };
    let work = WorkId { stream: first.work.stream, first_step: first.work.first_step, last_step: last.work.last_step };
    if items.len() == 1 {
        return Ok(items.into_iter().next().map(|item| item.payloads).unwrap_or_default());
    }
    (0..first.payloads.len())
        .map(|server| {
            let payloads = items.iter().map(|item| item.payloads[server].bytes());
            let views = payloads.map(|bytes| PushView::decode_in(bytes, pool)).collect::<Result<Vec<_>>>()?;
            merge_views(work, &views, pool)
        })
        .collect()
}

fn merge_views(work: WorkId, views: &[PushView<'_>], pool: &PayloadPool) -> Result<Payload> {
    let shape = &views[0];
    let merging = |source| Error::Table { action: "merging pushes to", table: "all".into(), source };
    let (want_values, counted) = (shape.want_values, shape.counted);
    // Merged gradients are one step, at the newest rate.
    let rate_factor = views.last().map_or(1.0, |view| view.rate_factor);
    let head = Head { want_values, width: shape.width, counted, rate_factor, ..Head::of(work) };
    let mut push = PushEncoder::in_payload(head, pool.empty());
    for (stage, PushedStage { keys, show_click, .. }) in shape.stages.iter().enumerate() {
        for (table, (&number, &dim)) in keys.tables.iter().zip(keys.dims).enumerate() {
            let parts = views.iter().map(|view| {
                let PushedStage { keys, gradients, show_click } = &view.stages[stage];
                SparsePart { keys: keys.keys, gradients: &gradients[table], show_click: *show_click }
            });
            let mut sum = match show_click {
                Some(_) => SparseMean::counting(dim as usize),
                None => SparseMean::new(dim as usize),
            };
            let merged = sum.mean(1, parts).map_err(merging)?;
            let rows = merged.gradients.chunks_exact(dim as usize);
            let mut counts =
                merged.show_click.map(|counts| (counts.show.iter().copied(), counts.click.iter().copied()));
            let counts = counts.as_mut().map(|(show, click)| Counts { show, click });
            push.stage(&[number], &[dim], merged.keys, std::iter::once(rows), counts);
        }
    }
    let mut push = push.blocks();
    let mut sum = DenseMean::new();
    for (at, &(block, _)) in shape.blocks.iter().enumerate() {
        let gradients = views.iter().map(|view| &*view.blocks[at].1);
        push.block(block, sum.mean(1, gradients).map_err(merging)?);
    }
    Ok(push.finish())
}
