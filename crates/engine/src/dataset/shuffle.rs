//! Rows that change their worker: the moving half of a global shuffle.
//!
//! Each member deals its rows, in rounds of a few megabytes, to all members by a seeded hash of its rank and the row's
//! number: every row goes to exactly one, and no two members have to agree on anything. A member says in every round
//! whether it has more to come; the last round is the one in which nobody has, so all take part equally often. Memory
//! holds each row once: chunks that were dealt are freed before those that come are kept.
//!
//! How bytes get to the others is handed in. This module knows neither servers nor files.

use std::sync::Arc;

use openfleet_core::key;

use super::error::{Error, Result};
use super::in_memory::{CHUNK_KEYS, CHUNK_ROWS};
use super::record_layout::RecordLayout;
use super::records::Records;

/// A round ends with the row that makes it at least this long: what a server holds for each worker at a time.
const ROUND_BYTES: usize = 4 << 20;

/// The last part of a message says that its sender has no more.
const LAST: u8 = 0;
/// There is another round to come.
const MORE: u8 = 1;

/// One member's view of a shuffle.
pub(super) struct Shuffle<'a> {
    pub(super) layout: &'a Arc<RecordLayout>,
    pub(super) seed: u64,
    pub(super) rank: usize,
    pub(super) members: usize,
}

impl Shuffle<'_> {
    /// Deals `mine` and gives what this member keeps and gets.
    pub(super) fn run<E: From<Error>>(
        &mut self,
        mine: Vec<Records>,
        mut exchange: impl FnMut(Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, E>,
    ) -> Result<Vec<Records>, E> {
        let mut kept = ChunkBuilder { chunks: Vec::new(), open: Records::new(self.layout.clone()) };
        let mut outgoing: Vec<Records> = (0..self.members).map(|_| Records::new(self.layout.clone())).collect();
        let mut mine = mine.into_iter();
        // The chunk being dealt, its next row, and that row's number among all.
        let (mut chunk, mut row, mut number) = (mine.next(), 0, 0u64);
        loop {
            let mut bytes = 0;
            while bytes < ROUND_BYTES
                && let Some(dealt) = &chunk
            {
                if row == dealt.rows() {
                    (chunk, row) = (mine.next(), 0);
                    continue;
                }
                let (view, to) = (dealt.row(row), self.receiver(number));
                if to == self.rank {
                    kept.open.push_row(view);
                    kept.seal_if_full();
                } else {
                    bytes += view.written_bytes(self.layout);
                    outgoing[to].push_row(view);
                }
                (row, number) = (row + 1, number + 1);
            }
            let more = if chunk.is_some() { MORE } else { LAST };
            let mut parts = vec![vec![more]; self.members];
            for (part, records) in parts.iter_mut().zip(&mut outgoing) {
                records.write(part);
                records.clear();
            }
            let mut any_member_has_more = more == MORE;
            for (member, part) in exchange(parts)?.iter().enumerate() {
                let (more, rows) = part.split_first().ok_or(Error::OtherFields { member })?;
                any_member_has_more |= *more == MORE;
                kept.open.read(rows).ok_or(Error::OtherFields { member })?;
                kept.seal_if_full();
            }
            if !any_member_has_more {
                return Ok(kept.all());
            }
        }
    }

    /// Who gets a row.
    fn receiver(&self, number: u64) -> usize {
        let chance = key::mix(key::mix(self.seed.wrapping_add(number)) ^ key::mix(self.rank as u64 + 1));
        // The upper half of a 64-bit product is uniform over the members up to one part in 2^32.
        ((u128::from(chance) * self.members as u128) >> 64) as usize
    }
}

/// Rows that stay, in chunks.
struct ChunkBuilder {
    chunks: Vec<Records>,
    open: Records,
}

impl ChunkBuilder {
    fn seal_if_full(&mut self) {
        if self.open.rows() >= CHUNK_ROWS || self.open.keys() >= CHUNK_KEYS {
            self.chunks.push(self.open.sealed());
            self.open.clear();
        }
    }

    fn all(mut self) -> Vec<Records> {
        if self.open.rows() > 0 {
            self.chunks.push(self.open.sealed());
        }
        self.chunks
    }
}
