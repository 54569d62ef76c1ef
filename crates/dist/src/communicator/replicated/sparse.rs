//! Sparse gradients of all ranks, gathered by distinct key.
//!
//! ```text
//! per stage: number of keys u64 | keys | gradients of each trained table | shows, clicks
//! ```

use openfleet_core::Unique;
use openfleet_core::key::{Key, mix};
use openfleet_core::strategy::FloatWidth;
use openfleet_table::SparseTable;

use crate::error::Result;
use crate::floats;
use crate::frame::{Payload, PayloadPool, Reader};
use crate::stage::{Counts, SparseStage};

/// What gathering keeps from step to step.
#[derive(Default)]
pub(super) struct Gather {
    /// Distinct keys of all ranks, per stage.
    unions: Vec<Unique>,
    /// Sums of one table.
    sums: Vec<f32>,
    /// Memory for converting narrow floats.
    widened: PayloadPool,
    /// Increases with every encoding: the seed for rounding.
    encoded: u64,
}

/// Bytes of an array in a payload.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// Bytes that the gradients of these stages have when they are encoded.
pub(super) fn bytes(stages: &[SparseStage], width: FloatWidth) -> usize {
    let float = match width {
        FloatWidth::Bits32 => 4,
        FloatWidth::Bits16 => 2,
    };
    let of = |stage: &SparseStage| {
        let keys = stage.unique.keys().len();
        let trained = stage.lookups.iter().filter(|lookup| lookup.trained);
        let gradients: usize = trained.map(|lookup| padded(keys * lookup.dim * float)).sum();
        let counts = if stage.counts.is_some() { 2 * padded(keys * 4) } else { 0 };
        8 + size_of_val(stage.unique.keys()) + gradients + counts
    };
    stages.iter().map(of).sum()
}

impl Gather {
    /// The gradients of this rank's step.
    pub(super) fn encode(&mut self, stages: &[SparseStage], width: FloatWidth) -> Payload {
        let mut payload = Payload::new();
        for stage in stages {
            payload.put(&[stage.unique.keys().len() as u64]);
            payload.put(stage.unique.keys());
            for lookup in stage.lookups.iter().filter(|lookup| lookup.trained) {
                self.encoded += 1;
                floats::put(&mut payload, width, &lookup.gradients, mix(self.encoded));
            }
            if let Some(Counts { show, click }) = &stage.counts {
                payload.put(show);
                payload.put(click);
            }
        }
        payload.pad();
        payload
    }

    /// Replaces the keys and gradients of the stages by those of all ranks: keys in the order of the ranks, gradients added up in
    /// that order and multiplied by `scale`, shows and clicks added up.
    pub(super) fn merge(
        &mut self,
        stages: &mut [SparseStage],
        all: &Payload,
        lengths: &[usize],
        width: FloatWidth,
        scale: f32,
    ) -> Result<()> {
        let mut blocks = Vec::with_capacity(lengths.len());
        let mut rest = all.bytes();
        for &length in lengths {
            let (block, after) = rest.split_at(length);
            // A rank without data sends nothing.
            if length > 0 {
                blocks.push(Reader::new(block));
            }
            rest = after;
        }
        self.unions.resize_with(stages.len(), Unique::new);
        for (stage, union) in stages.iter_mut().zip(&mut self.unions) {
            union.start(0);
            let mut counts = Vec::with_capacity(blocks.len());
            for block in &mut blocks {
                let count = block.one::<u64>()? as usize;
                union.add(block.take::<Key>(count)?);
                counts.push(count);
            }
            let (keys, inverse) = (union.keys().len(), union.inverse());
            for lookup in stage.lookups.iter_mut().filter(|lookup| lookup.trained) {
                self.sums.clear();
                self.sums.resize(keys * lookup.dim, 0.0);
                let mut at = 0;
                for (block, &count) in blocks.iter_mut().zip(&counts) {
                    let gradients = floats::take(block, width, &self.widened, count * lookup.dim)?;
                    add_rows(&mut self.sums, &gradients, &inverse[at..at + count], lookup.dim);
                    at += count;
                }
                self.sums.iter_mut().for_each(|sum| *sum *= scale);
                std::mem::swap(&mut lookup.gradients, &mut self.sums);
            }
            if let Some(Counts { show, click }) = &mut stage.counts {
                for sums in [&mut *show, &mut *click] {
                    sums.clear();
                    sums.resize(keys, 0.0);
                }
                let mut at = 0;
                for (block, &count) in blocks.iter_mut().zip(&counts) {
                    for sums in [&mut *show, &mut *click] {
                        add_rows(sums, block.take(count)?, &inverse[at..at + count], 1);
                    }
                    at += count;
                }
            }
            std::mem::swap(&mut stage.unique, union);
        }
        Ok(())
    }
}

/// Adds row `i` of `rows` to row `inverse[i]` of `sums`.
pub(super) fn add_rows(sums: &mut [f32], rows: &[f32], inverse: &[u32], dim: usize) {
    for (row, &to) in rows.chunks_exact(dim.max(1)).zip(inverse) {
        let sum = &mut sums[to as usize * dim..][..dim];
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
}

/// Number of rows, and a hash of all of them that does not depend on their order.
pub(super) fn digest(table: &SparseTable) -> [u64; 2] {
    let mut hash = table.step();
    table.for_each(|key, weights, state| {
        let row = weights.iter().chain(state).fold(mix(key), |row, value| mix(row ^ u64::from(value.to_bits())));
        hash ^= row;
    });
    [table.len() as u64, hash]
}
