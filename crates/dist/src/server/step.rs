//! Applying one step of a group: the mean of the gradients that all its streams have pushed.

use std::collections::BTreeMap;

use openfleet_table::aggregate::{DenseMean, SparseMean, SparsePart};
use openfleet_table::{Accessor, clip};

use super::tables::{NamedDense, NamedSparse, Tables};
use crate::error::Result;
use crate::frame::Payload;
use crate::gradients::PushedStage;

/// Buffers of the means, kept between steps.
#[derive(Default)]
pub(super) struct Means {
    dense: DenseMean,
    sparse: BTreeMap<u32, SparseMean>,
}

/// The mean gradients of a step for one table.
enum Mean<'a> {
    Rows(&'a NamedSparse, SparsePart<'a>),
    Block(&'a NamedDense, &'a [f32]),
}

/// Gradients multiplied by a factor below 1; other factors leave them unchanged.
fn scale_into<'a>(gradients: &'a [f32], factor: f32, scaled: &'a mut Vec<f32>) -> &'a [f32] {
    if factor >= 1.0 {
        return gradients;
    }
    scaled.clear();
    scaled.extend_from_slice(gradients);
    clip::scale(scaled, factor);
    scaled
}

impl Tables {
    /// Applies a step of a group, of which each stream has pushed one or more parts: sums all gradients in the order of the
    /// streams, divides by the number of streams that took part, and scales. Learning rates are those of the first stream.
    pub(crate) fn apply_step(&self, pushes: &[Vec<&Payload>], factor: f32) -> Result<()> {
        let (mut scratch, mut scaled) = (self.scratch(), Vec::new());
        self.each_mean(pushes, |mean, rate_factor| match mean {
            Mean::Rows(table, SparsePart { keys, gradients, show_click }) => {
                let gradients = scale_into(gradients, factor, &mut scaled);
                let pushed = table.table.push_at(keys, gradients, show_click, rate_factor, &mut scratch);
                pushed.map(drop).map_err(|e| table.error("pushing to", e))
            }
            Mean::Block(block, gradient) => {
                let pushed = block.table.push_at(scale_into(gradient, factor, &mut scaled), rate_factor);
                pushed.map(drop).map_err(|e| block.error("pushing to", e))
            }
        })?;
        self.put_scratch(scratch);
        Ok(())
    }

    /// The sum of squares of the mean gradients that this server has of a step.
    pub(crate) fn measure_step(&self, pushes: &[Vec<&Payload>]) -> Result<f64> {
        let mut squares = 0.0;
        self.each_mean(pushes, |mean, _| {
            squares += clip::sum_of_squares(match mean {
                Mean::Rows(_, SparsePart { gradients, .. }) => gradients,
                Mean::Block(_, gradient) => gradient,
            });
            Ok(())
        })?;
        Ok(squares)
    }

    /// Calls `show` with the mean gradients of a step: rows of each table in order of the tables, then each block; and with what
    /// multiplies their learning rates.
    fn each_mean(&self, pushes: &[Vec<&Payload>], mut show: impl FnMut(Mean<'_>, f32) -> Result<()>) -> Result<()> {
        let took_part = pushes.len();
        let views = pushes.iter().flatten().map(|payload| self.decode(payload)).collect::<Result<Vec<_>>>()?;
        let rate_factor = views.first().map_or(1.0, |view| view.rate_factor);
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
        let mut means = self.means.lock();
        for (number, parts) in tables {
            let table = self.sparse(number)?;
            let new_mean = || match table.table.spec().accessor {
                Accessor::Plain => SparseMean::new(table.table.dim()),
                Accessor::Ctr(_) => SparseMean::counting(table.table.dim()),
            };
            let mean = means.sparse.entry(number).or_insert_with(new_mean);
            let merged = mean.mean(took_part, parts).map_err(|e| table.error("merging pushes to", e))?;
            show(Mean::Rows(&table, merged), rate_factor)?;
        }
        for (number, gradients) in blocks {
            let block = self.dense(number)?;
            let mean = means
                .dense
                .mean(took_part, gradients.iter().copied())
                .map_err(|e| block.error("merging pushes to", e))?;
            show(Mean::Block(&block, mean), rate_factor)?;
        }
        Ok(())
    }
}
