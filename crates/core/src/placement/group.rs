//! The keys of a batch sorted by server, and their original positions.
//!
//! There is one request per server and batch: [`Grouping`] lists each server's keys together and keeps the position of every
//! key, so that gradients can be scattered to servers and rows gathered from their replies in the order of the batch. A
//! counting sort in two passes; within a server the order of the batch is kept. Memory is reused: nothing is allocated after
//! warm-up.

use crate::error::{Error, Result};
use crate::key::Key;
use crate::placement::bucket::Buckets;

/// Reusable scratch with one batch's keys by server.
#[derive(Debug, Clone, Default)]
pub struct Grouping {
    /// Each key's server, in the order of the batch. 4096 servers fit 16 bits.
    servers: Vec<u16>,
    /// Start of each server's keys, then the end of the last.
    starts: Vec<u32>,
    keys: Vec<Key>,
    /// For each of `keys`, its position in the batch.
    positions: Vec<u32>,
}

impl Grouping {
    /// Empty scratch, without servers.
    pub fn new() -> Self {
        Grouping::default()
    }

    /// Removes the last batch and sorts `keys` by server.
    ///
    /// # Panics
    /// If a batch has 2^32 keys or more.
    pub fn group(&mut self, buckets: Buckets, keys: &[Key]) {
        assert!(u32::try_from(keys.len()).is_ok(), "a batch has fewer than 2^32 keys");
        self.starts.clear();
        self.starts.resize(buckets.server_count() + 1, 0);
        if buckets.server_count() == 1 {
            self.starts[1] = keys.len() as u32;
            self.keys.clear();
            self.keys.extend_from_slice(keys);
            self.positions.clear();
            self.positions.extend(0..keys.len() as u32);
            return;
        }
        // Counted one server late: after the sums below, `starts[s + 1]` is where server s begins, and the second pass moves it
        // to where s ends, which is where s + 1 begins.
        let starts = &mut self.starts[..];
        self.servers.clear();
        self.servers.extend(keys.iter().map(|&key| {
            let server = buckets.server_of(key);
            starts[server + 1] += 1;
            server as u16
        }));
        let mut begin = 0;
        for start in &mut starts[1..] {
            begin += std::mem::replace(start, begin);
        }
        self.keys.resize(keys.len(), 0);
        self.positions.resize(keys.len(), 0);
        for (position, (&key, &server)) in keys.iter().zip(&self.servers).enumerate() {
            let start = &mut starts[usize::from(server) + 1];
            let place = *start as usize;
            *start += 1;
            self.keys[place] = key;
            self.positions[place] = position as u32;
        }
    }

    /// Number of keys in the batch.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Number of servers that the batch was sorted over; 0 before the first.
    pub fn server_count(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// The keys of a server in the order of the batch; may be empty.
    ///
    /// # Panics
    /// If there is no such server, here and below.
    pub fn keys(&self, server: usize) -> &[Key] {
        &self.keys[self.range(server)]
    }

    /// For each key of a server, its position in the batch.
    pub fn positions(&self, server: usize) -> &[u32] {
        &self.positions[self.range(server)]
    }

    /// Appends to `out` the values that a push to one server contains: `rows` has `width` values per key of the batch, and
    /// those of this server's keys are copied.
    pub fn scatter<T: Copy>(&self, server: usize, width: usize, rows: &[T], out: &mut Vec<T>) -> Result<()> {
        check_length("rows of the batch", self.keys.len() * width, rows.len())?;
        if self.server_count() == 1 {
            out.extend_from_slice(rows);
            return Ok(());
        }
        let positions = self.positions(server);
        out.reserve(positions.len() * width);
        for &position in positions {
            let begin = position as usize * width;
            out.extend_from_slice(&rows[begin..begin + width]);
        }
        Ok(())
    }

    /// Copies one server's reply, `width` values per key, to the positions of its keys in the batch. After the replies of all
    /// servers every row is filled. A reply of another length is refused and changes nothing.
    pub fn gather<T: Copy>(&self, server: usize, width: usize, reply: &[T], rows: &mut [T]) -> Result<()> {
        let positions = self.positions(server);
        check_length("reply of a server", positions.len() * width, reply.len())?;
        check_length("rows of the batch", self.keys.len() * width, rows.len())?;
        if self.server_count() == 1 {
            rows.copy_from_slice(reply);
            return Ok(());
        }
        if width == 0 {
            return Ok(());
        }
        for (row, &position) in reply.chunks_exact(width).zip(positions) {
            let begin = position as usize * width;
            rows[begin..begin + width].copy_from_slice(row);
        }
        Ok(())
    }

    fn range(&self, server: usize) -> std::ops::Range<usize> {
        self.starts[server] as usize..self.starts[server + 1] as usize
    }
}

fn check_length(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::Length { what, expected, got }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grouped(keys: &[Key], server_count: usize) -> Grouping {
        let mut grouping = Grouping::new();
        grouping.group(Buckets::new(server_count).unwrap(), keys);
        grouping
    }

    #[test]
    fn keys_of_a_server_keep_the_order_of_the_batch_repeats_included() {
        // Buckets 0x000 and 0xb45: with two servers key 0 is on the first and key 1 on the second.
        let grouping = grouped(&[1, 0, 1, 0, 0], 2);
        assert_eq!((grouping.keys(0), grouping.positions(0)), ([0, 0, 0].as_slice(), [1, 3, 4].as_slice()));
        assert_eq!((grouping.keys(1), grouping.positions(1)), ([1, 1].as_slice(), [0, 2].as_slice()));
    }

    #[test]
    fn a_batch_without_keys_leaves_every_server_without() {
        let grouping = grouped(&[], 3);
        assert_eq!((grouping.server_count(), grouping.key_count()), (3, 0));
        assert!((0..3).all(|server| grouping.keys(server).is_empty()));
        assert_eq!(Grouping::new().server_count(), 0);
    }

    #[test]
    fn a_reply_of_another_length_is_refused_and_changes_nothing() {
        for server_count in [1, 2] {
            let grouping = grouped(&[0, 0], server_count);
            let mut rows = [7.0_f32; 4];
            let error = grouping.gather(0, 2, &[1.0; 3], &mut rows).unwrap_err();
            assert_eq!(error, Error::Length { what: "reply of a server", expected: 4, got: 3 });
            assert_eq!(rows, [7.0; 4]);
            let error = grouping.gather(0, 2, &[1.0; 4], &mut rows[..2]).unwrap_err();
            assert_eq!(error, Error::Length { what: "rows of the batch", expected: 4, got: 2 });
            assert!(grouping.scatter(0, 2, &rows[..3], &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn rows_of_no_width_travel_as_nothing() {
        let grouping = grouped(&[0, 1], 2);
        assert!(grouping.gather::<f32>(0, 0, &[], &mut []).is_ok());
        let mut out = Vec::<f32>::new();
        assert!(grouping.scatter(1, 0, &[], &mut out).is_ok() && out.is_empty());
    }

    proptest! {
        #[test]
        fn scattering_and_gathering_is_the_identity(
            batches in prop::collection::vec(
                (prop::collection::vec(prop_oneof![0_u64..50, any::<u64>()], 0..400),
                 prop_oneof![1_usize..6, 1_usize..=4096]),
                1..4),
            width in 1_usize..5,
        ) {
            // One scratch for all batches: nothing of an earlier batch may be visible.
            let mut grouping = Grouping::new();
            for (keys, server_count) in batches {
                let buckets = Buckets::new(server_count).unwrap();
                grouping.group(buckets, &keys);
                let rows: Vec<u64> = (0..(keys.len() * width) as u64).collect();
                let (mut back_keys, mut back_rows) = (vec![0; keys.len()], vec![0; rows.len()]);
                let (mut seen, mut out) = (0, Vec::new());
                for server in 0..server_count {
                    let own = grouping.keys(server);
                    prop_assert!(own.iter().all(|&key| buckets.server_of(key) == server));
                    prop_assert!(grouping.positions(server).windows(2).all(|pair| pair[0] < pair[1]));
                    seen += own.len();
                    grouping.gather(server, 1, own, &mut back_keys).unwrap();
                    out.clear();
                    grouping.scatter(server, width, &rows, &mut out).unwrap();
                    grouping.gather(server, width, &out, &mut back_rows).unwrap();
                }
                prop_assert_eq!(seen, keys.len());
                prop_assert_eq!(back_keys, keys);
                prop_assert_eq!(back_rows, rows);
            }
        }
    }
}
