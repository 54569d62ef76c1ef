//! The part of a global shuffle that moves rows between workers.
//!
//! Each member sends its rows, in rounds of a few megabytes, to members chosen by a seeded hash of its rank and the row's index:
//! every row goes to exactly one member, without any agreement between members. In every round a member says whether it has more
//! rows. The last round is the one in which no member has, so all members take part equally often. Each row is in memory once:
//! chunks that were sent are freed before received rows are stored.
//!
//! The caller passes the function that exchanges bytes. This module knows neither servers nor files.

use std::sync::Arc;

use openfleet_core::key;

use super::error::{Error, Result};
use super::in_memory::{CHUNK_KEYS, CHUNK_ROWS};
use super::record_layout::RecordLayout;
use super::records::Records;

/// A round ends with the row that makes it at least this long. A server holds this much per worker at a time.
const ROUND_BYTES: usize = 4 << 20;

/// First byte of a message: the sender has no more rows.
const LAST: u8 = 0;
/// First byte of a message: the sender has more rows.
const MORE: u8 = 1;

/// One member of a shuffle.
pub(super) struct Shuffle<'a> {
    pub(super) layout: &'a Arc<RecordLayout>,
    pub(super) seed: u64,
    pub(super) rank: usize,
    pub(super) members: usize,
}

impl Shuffle<'_> {
    /// Sends the rows of `own_rows` and returns the rows that this member keeps and receives.
    pub(super) fn run<E: From<Error>>(
        &mut self,
        own_rows: Vec<Records>,
        mut exchange: impl FnMut(Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, E>,
    ) -> Result<Vec<Records>, E> {
        let mut received = ChunkBuilder { chunks: Vec::new(), open: Records::new(self.layout.clone()) };
        let mut outgoing: Vec<Records> = (0..self.members).map(|_| Records::new(self.layout.clone())).collect();
        let mut own_rows = own_rows.into_iter();
        // The chunk being sent, its next row, and that row's index among all rows.
        let (mut chunk, mut row, mut number) = (own_rows.next(), 0, 0u64);
        loop {
            let mut bytes = 0;
            while bytes < ROUND_BYTES
                && let Some(sending) = &chunk
            {
                if row == sending.rows() {
                    (chunk, row) = (own_rows.next(), 0);
                    continue;
                }
                let (view, to) = (sending.row(row), self.receiver(number));
                if to == self.rank {
                    received.open.push_row(view);
                    received.seal_if_full();
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
                received.open.read(rows).ok_or(Error::OtherFields { member })?;
                received.seal_if_full();
            }
            if !any_member_has_more {
                return Ok(received.all());
            }
        }
    }

    /// The member that gets a row.
    fn receiver(&self, number: u64) -> usize {
        let chance = key::mix(key::mix(self.seed.wrapping_add(number)) ^ key::mix(self.rank as u64 + 1));
        // The upper half of a 64-bit product is uniform over the members up to one part in 2^32.
        ((u128::from(chance) * self.members as u128) >> 64) as usize
    }
}

/// Collects rows into chunks.
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
