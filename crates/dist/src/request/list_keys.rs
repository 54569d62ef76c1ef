//! Lists the keys of a table on one server: those of one shard in each request, so that no reply is large.
//!
//! The reply is the number of shards, then the keys.

use openfleet_core::Key;

use super::{Request, now};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListKeys {
    /// Number of the table.
    pub(crate) table: u32,
    /// The shard, from 0.
    pub(crate) shard: u32,
}

impl Request for ListKeys {
    const NAME: &'static str = "list keys";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.table, self.shard]);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let words = reader.take::<u32>(2)?;
        let request = ListKeys { table: words[0], shard: words[1] };
        reader.end()?;
        Ok(request)
    }

    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        let (shards, keys) = server.tables.keys_of(self.table, self.shard)?;
        let mut reply = Payload::new();
        reply.put(&[shards as u64]);
        reply.put(&keys);
        now(reply)
    }
}

/// Appends the keys of a reply, and returns the number of shards.
pub(crate) fn take(reply: &Payload, keys: &mut Vec<Key>) -> Result<u32> {
    let mut reader = Reader::new(reply.bytes());
    let shards = reader.take::<u64>(1)?[0] as u32;
    keys.extend_from_slice(reader.take::<Key>(reply.bytes().len() / size_of::<Key>() - 1)?);
    reader.end()?;
    Ok(shards)
}
