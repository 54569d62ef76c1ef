//! The keys of a request, grouped by shard.
//!
//! Keys are grouped first so that each shard's lock is taken once per request. The buffers belong to the caller, one set per
//! thread: a request that is not larger than earlier ones allocates nothing.

use openfleet_core::Key;
use openfleet_core::key::mix;

use crate::error::{Error, Result};

/// Reusable buffers for requests; any table may use any scratch.
#[derive(Debug, Default)]
pub struct Scratch {
    hashes: Vec<u64>,
    grouped: Vec<Wanted>,
    /// End of each shard's group in `grouped`.
    ends: Vec<u32>,
    /// Shards that another thread had locked.
    pub(super) deferred: Vec<usize>,
    /// Gradients that were clamped.
    pub(super) mended: Vec<f32>,
}

/// One key of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted {
    pub(super) key: Key,
    /// The part of the hash that the index uses.
    pub(super) tag: u32,
    /// Position of the key in the request.
    pub(super) at: u32,
}

impl Wanted {
    pub(super) fn new(key: Key, at: u32) -> Self {
        Wanted { key, tag: tag(hash(key)), at }
    }
}

impl Scratch {
    /// Empty buffers; they grow with the first requests.
    pub fn new() -> Self {
        Scratch::default()
    }

    /// Sorts the keys by shard, in request order within a shard, so that duplicates are processed one after another.
    pub(super) fn group(&mut self, keys: &[Key], shards: usize) -> Result<()> {
        let limit = u32::MAX as usize;
        if keys.len() > limit {
            return Err(Error::TooManyKeys { limit, got: keys.len() });
        }
        self.ends.clear();
        self.ends.resize(shards, 0);
        self.hashes.clear();
        self.hashes.extend(keys.iter().map(|key| hash(*key)));
        for hash in &self.hashes {
            self.ends[shard(*hash, shards)] += 1;
        }
        let mut start = 0;
        for end in &mut self.ends {
            start += std::mem::replace(end, start);
        }
        if self.grouped.len() < keys.len() {
            self.grouped.resize(keys.len(), Wanted::default());
        }
        // Each shard's start moves to its end while the keys are written.
        for (at, (key, hash)) in keys.iter().zip(&self.hashes).enumerate() {
            let next = &mut self.ends[shard(*hash, shards)];
            self.grouped[*next as usize] = Wanted { key: *key, tag: tag(*hash), at: at as u32 };
            *next += 1;
        }
        Ok(())
    }

    /// The non-empty groups, with their shard numbers.
    pub(super) fn groups(&self) -> impl Iterator<Item = (usize, &[Wanted])> {
        (0..self.ends.len()).map(|shard| (shard, self.group_of(shard))).filter(|(_, group)| !group.is_empty())
    }

    /// The group of one shard.
    pub(super) fn group_of(&self, shard: usize) -> &[Wanted] {
        let start = if shard == 0 { 0 } else { self.ends[shard - 1] };
        &self.grouped[start as usize..self.ends[shard] as usize]
    }
}

/// The shard of `key`.
pub(super) fn shard_of(key: Key, shards: usize) -> usize {
    shard(hash(key), shards)
}

/// A different function of the key than placement's `mix(key)`: the keys of one server share bits of that.
#[inline(always)]
fn hash(key: Key) -> u64 {
    mix(key ^ 0x5bd1_e995_2545_f491)
}

/// Shard and tag come from different halves of the hash; otherwise the tags of a shard would cluster.
#[inline(always)]
fn shard(hash: u64, shards: usize) -> usize {
    hash as u32 as usize & (shards - 1)
}

#[inline(always)]
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}
