//! The first phase of a step: deduplicates ids, and counts shows and clicks per key.

use openfleet_core::{Batch, Column};
use openfleet_dist::stage::Counts;

use super::Plan;
use crate::error::{Error, Result};
use crate::memory::Arena;

impl Plan {
    /// Deduplicates the ids of every stage. Fails if an id is outside its vocabulary.
    pub fn prepare(&self, arena: &mut Arena, batch: &Batch) -> Result<()> {
        for (plan, stage) in self.stages.iter().zip(&mut arena.sparse) {
            stage.unique.start(0);
            for (&feed, &salt) in plan.feeds.iter().zip(&plan.salts) {
                if let Column::Ids { keys, offsets } = &batch.columns[arena.feeds[feed]] {
                    if let Some(vocabulary) = self.feeds[feed].vocabulary {
                        check_vocabulary(&self.feeds[feed].name, vocabulary, keys, offsets)?;
                    }
                    stage.unique.add_salted(keys, salt);
                }
            }
            let count = stage.unique.keys().len();
            if let Some((show, click)) = plan.counts {
                let column = |feed: usize| &batch.columns[arena.feeds[feed]];
                let ids = plan.feeds.iter().map(|&feed| column(feed));
                let counts = stage.counts.get_or_insert_default();
                count_keys(counts, count, stage.unique.inverse(), ids, column(show), column(click));
            }
            for lookup in &mut stage.lookups {
                lookup.rows.resize(count * lookup.dim, 0.0);
                if self.differentiates {
                    lookup.gradients.resize(count * lookup.dim, 0.0);
                }
            }
        }
        Ok(())
    }
}

/// Adds up the shows and clicks of the samples with each key.
fn count_keys<'a>(
    counts: &mut Counts,
    keys: usize,
    inverse: &[u32],
    slots: impl Iterator<Item = &'a Column>,
    show: &Column,
    click: &Column,
) {
    for sums in [&mut counts.show, &mut counts.click] {
        sums.clear();
        sums.resize(keys, 0.0);
    }
    let mut of_id = inverse.iter();
    for slot in slots {
        let Column::Ids { offsets, .. } = slot else { continue };
        for (row, ends) in offsets.windows(2).enumerate() {
            let (show, click) = (number(show, row), number(click, row));
            for &key in of_id.by_ref().take((ends[1] - ends[0]) as usize) {
                counts.show[key as usize] += show;
                counts.click[key as usize] += click;
            }
        }
    }
}

/// The only number of a row.
fn number(column: &Column, row: usize) -> f32 {
    match column {
        Column::Ids { offsets, keys } => keys[offsets[row] as usize] as f32,
        Column::Floats { values, .. } => values[row],
    }
}

/// Fails if an id is not below the size of the vocabulary.
pub(super) fn check_vocabulary(slot: &str, vocabulary: u64, keys: &[u64], offsets: &[u32]) -> Result<()> {
    match keys.iter().position(|&key| key >= vocabulary) {
        None => Ok(()),
        Some(at) => Err(Error::Value {
            op: "embedding",
            what: format!("an id of slot `{slot}`"),
            expected: format!("below the vocabulary's size {vocabulary}"),
            got: keys[at].to_string(),
            row: offsets.partition_point(|&end| end as usize <= at).saturating_sub(1),
        }),
    }
}
