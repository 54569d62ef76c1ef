//! What the ops on sequences share.
//!
//! A batch has B sequences of rows. The rows are joined along the first dimension: x is `[N, ...]`, N rows of W elements each, and
//! `lengths` `[B]` has the number of rows of each sequence. They add up to N; a sequence may have no rows.

use std::ops::Range;

use super::{Signature, expected, view};
use crate::error::Result;
use crate::graph::{Net, Var};
use crate::memory::Inputs;
use crate::value::{DType, Dim, Shape};

impl Net {
    /// The number of rows of each sequence that `x` joins, integers `[B]`. `x` is a slot, its embedding with
    /// [`Pooling::Each`](super::Pooling::Each), what [`sequence_unpad`](Net::sequence_unpad) or
    /// [`sequence_expand`](Net::sequence_expand) returns, or what layers compute from these row by row.
    pub fn lengths(&mut self, x: Var) -> Result<Var> {
        self.lengths_for("lengths", x)
    }

    /// The lengths of the sequences that an op works on.
    pub(super) fn lengths_for(&mut self, op: &'static str, x: Var) -> Result<Var> {
        if let Some(lengths) = self.main.lengths(x) {
            return Ok(lengths);
        }
        let variable = self.main.variable(x);
        if !variable.ragged {
            let got = format!("`{}` of shape {}, whose rows are not those of sequences", variable.name, variable.shape);
            return expected(op, "a slot, the embedding of each of its ids, or what follows from them row by row", got);
        }
        let lengths = self.slot_lengths(x)?;
        self.main.set_lengths(x, lengths);
        Ok(lengths)
    }

    /// Adds an op on the sequences that `x` joins, whose second input is their lengths, and joins its result alike.
    pub(super) fn append_to_sequences(&mut self, name: &'static str, op: impl Into<super::Op>, x: Var) -> Result<Var> {
        let lengths = self.lengths_for(name, x)?;
        let result = self.append_one(name, op, &[x, lengths])?;
        self.main.set_lengths(result, lengths);
        Ok(result)
    }
}

/// Fails unless input 0 is a tensor and input 1 has the lengths of sequences.
pub(super) fn expect_sequences(op: &'static str, inputs: &[Signature]) -> Result<()> {
    view::expect_tensors(op, &inputs[..1])?;
    let (x, lengths) = (&inputs[0], &inputs[1]);
    if x.shape.rank() == 0 || lengths.dtype != DType::I64 || lengths.ragged || lengths.shape.rank() != 1 {
        let got = format!("{} and {} of {:?}", x.shape, lengths.shape, lengths.dtype);
        return expected(op, "joined sequences [N, ...] and their lengths, integers [B]", got);
    }
    Ok(())
}

/// The shape of `[N, ...]` with other dimensions in place of N.
pub(super) fn with_leading(leading: &[Dim], x: &Shape) -> Shape {
    Shape([leading, &x.0[1..]].concat())
}

/// The rows of each sequence, by `lengths`.
pub(super) fn ranges(lengths: &[u64]) -> impl Iterator<Item = Range<usize>> {
    lengths.iter().scan(0, |start, &length| {
        let range = *start..*start + length as usize;
        *start = range.end;
        Some(range)
    })
}

/// The rows of each sequence among the rows of input 0, by the lengths of input 1. Fails if they do not add up.
pub(super) fn rows_of_sequences<'a>(
    op: &'static str,
    inputs: &Inputs<'a>,
) -> Result<impl Iterator<Item = Range<usize>> + use<'a>> {
    let (rows, lengths) = (inputs.size(0, 0), inputs.ints(1));
    check(op, lengths, rows)?;
    let total: u64 = lengths.iter().sum();
    if total != rows as u64 {
        return expected(op, format!("lengths that add up to its {rows} rows"), total);
    }
    Ok(ranges(lengths))
}

/// Fails unless each length is from 0 to `most`.
pub(super) fn check(op: &'static str, lengths: &[u64], most: usize) -> Result<()> {
    match lengths.iter().position(|&length| length > most as u64) {
        None => Ok(()),
        Some(at) => expected(op, format!("lengths from 0 to {most}"), format!("{} at {at}", lengths[at] as i64)),
    }
}

/// The elements of a range of rows.
pub(super) fn elements(rows: Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}
