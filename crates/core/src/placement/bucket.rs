//! Which server has a sparse key.
//!
//! The bucket of a key never changes: it is the top 12 bits of the mixed hash. Servers own contiguous ranges of buckets, so a
//! checkpoint sorted by bucket can be read by any number of servers, and consecutive ids are spread over all servers
//! (PaddlePaddle's `id mod P` puts all even ids on one of two servers).
//!
//! Bucket b of 4096 belongs to server floor(b * P / 4096): a multiplication and a shift, no table and no division, and servers
//! differ by at most one bucket for every P up to 4096. This uses the top bits; a hash index inside a server should use lower
//! ones, which are still evenly distributed among its keys.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::key::{Key, mix};

/// Number of buckets, whatever the number of servers; part of the checkpoint format.
pub const BUCKET_COUNT: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 12;

/// The bucket of a key, below [`BUCKET_COUNT`].
#[inline(always)]
pub fn bucket_of(key: Key) -> usize {
    (mix(key) >> (u64::BITS - BUCKET_BITS)) as usize
}

/// Assigns buckets to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets {
    server_count: u32,
}

impl Buckets {
    /// Fails unless there are between 1 and [`BUCKET_COUNT`] servers.
    pub fn new(server_count: usize) -> Result<Self> {
        match server_count {
            1..=BUCKET_COUNT => Ok(Buckets { server_count: server_count as u32 }),
            got => Err(Error::ServerCount { got }),
        }
    }

    /// Number of servers.
    pub fn server_count(&self) -> usize {
        self.server_count as usize
    }

    /// The server of a key.
    #[inline(always)]
    pub fn server_of(&self, key: Key) -> usize {
        self.server_of_bucket(bucket_of(key))
    }

    /// The server of a bucket, which is below [`BUCKET_COUNT`].
    #[inline(always)]
    pub fn server_of_bucket(&self, bucket: usize) -> usize {
        ((bucket as u32 * self.server_count) >> BUCKET_BITS) as usize
    }

    /// The buckets of a server; never empty for a server that exists.
    pub fn range(&self, server: usize) -> Range<usize> {
        let start = |server: usize| (server * BUCKET_COUNT).div_ceil(self.server_count as usize);
        start(server)..start(server + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_bucket_has_one_server_and_servers_differ_by_at_most_one_bucket() {
        for server_count in 1..=BUCKET_COUNT {
            let buckets = Buckets::new(server_count).unwrap();
            let mut end = 0;
            for server in 0..server_count {
                let range = buckets.range(server);
                let fewest = BUCKET_COUNT / server_count;
                assert!(range.len() == fewest || range.len() == fewest + 1, "{server} of {server_count}: {range:?}");
                assert_eq!(range.start, end, "ranges follow one another");
                assert!(range.clone().all(|bucket| buckets.server_of_bucket(bucket) == server));
                end = range.end;
            }
            assert_eq!(end, BUCKET_COUNT);
        }
    }

    /// A change here would move every row of every checkpoint: these values are part of the format.
    #[test]
    fn buckets_are_the_top_bits_of_the_mixed_key() {
        let rows = [
            // mix(0) = 0.
            (0, 0x000),
            // mix(1) = 0xb456bcfc34c2cb2c.
            (1, 0xb45),
            // mix(u64::MAX) = 0x64b5720b4b825f21.
            (u64::MAX, 0x64b),
        ];
        for (key, bucket) in rows {
            assert_eq!(bucket_of(key), bucket, "{key}");
        }
    }

    #[test]
    fn consecutive_ids_and_multiples_are_spread_evenly() {
        for server_count in [2_usize, 3, 7, 30] {
            let buckets = Buckets::new(server_count).unwrap();
            for stride in [1_u64, 2, 1000, 1 << 32] {
                let mut counts = vec![0_usize; server_count];
                (0..100_000_u64).for_each(|n| counts[buckets.server_of(n * stride)] += 1);
                let mean = 100_000 / server_count;
                assert!(counts.iter().all(|&count| count.abs_diff(mean) < mean / 10), "{stride}: {counts:?}");
            }
        }
    }

    #[test]
    fn more_servers_than_buckets_is_an_error() {
        assert_eq!(Buckets::new(0), Err(Error::ServerCount { got: 0 }));
        assert_eq!(Buckets::new(4097), Err(Error::ServerCount { got: 4097 }));
        assert!(Buckets::new(4096).is_ok());
    }

    proptest! {
        #[test]
        fn every_key_is_in_the_range_of_exactly_one_server(key: u64, server_count in 1_usize..=BUCKET_COUNT) {
            let buckets = Buckets::new(server_count).unwrap();
            let owners: Vec<usize> =
                (0..server_count).filter(|&server| buckets.range(server).contains(&bucket_of(key))).collect();
            prop_assert_eq!(owners, [buckets.server_of(key)]);
        }
    }
}
