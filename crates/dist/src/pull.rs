//! The encoding of a pull: the keys whose rows are requested, for all stages and tables together.
//!
//! ```text
//! create, number of stages | number | for each stage: tables, keys
//! ```
//!
//! The reply is the rows, table by table in the requested order, each table as `keys x dim` floats. A pull is a request of its own
//! ([`PullSparse`](crate::request::pull_sparse::PullSparse)), or comes with the push of the step before
//! ([`PushView::next_pull`](crate::gradients::PushView::next_pull)). This module knows no server and no request.

use openfleet_table::Missing;

use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::gradients::{KeysView, put_keys, take_keys};

/// Writes a pull.
#[derive(Debug)]
pub struct PullEncoder(Payload);

impl PullEncoder {
    /// Begins a pull of some stages; every pull of a worker has its own `number`.
    pub fn new(missing: Missing, number: u64, stages: usize) -> Self {
        let mut payload = Payload::new();
        payload.put(&[u32::from(missing == Missing::Create), stages as u32]);
        payload.put(&[number]);
        PullEncoder(payload)
    }

    /// Adds the keys of a stage.
    pub fn stage(&mut self, tables: &[u32], dims: &[u32], keys: &[u64]) {
        put_keys(&mut self.0, tables, dims, keys);
    }

    /// Returns the encoded pull.
    pub fn finish(self) -> Payload {
        self.0
    }
}

/// A pull, decoded in place.
#[derive(Debug)]
pub struct PullView<'a> {
    /// What is done about keys without a row.
    pub missing: Missing,
    /// The number of the pull.
    pub number: u64,
    /// The keys and tables of each stage.
    pub stages: Vec<KeysView<'a>>,
}

impl<'a> PullView<'a> {
    /// Decodes a pull. Fails if it is damaged.
    pub fn decode(pull: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(pull);
        let head = reader.take::<u32>(2)?;
        let number = reader.one()?;
        // Not collected with a capacity: the count comes from the network.
        let stages = (0..head[1]).map(|_| take_keys(&mut reader)).collect::<Result<Vec<_>>>()?;
        reader.end()?;
        let missing = if head[0] == 1 { Missing::Create } else { Missing::Initial };
        Ok(PullView { missing, number, stages })
    }
}

/// Reads the rows of the next table of a reply.
pub fn take_rows<'a>(reply: &mut Reader<'a>, keys: usize, dim: usize) -> Result<&'a [f32]> {
    reply.take(keys.saturating_mul(dim))
}
