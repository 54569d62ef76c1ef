//! Pulls how dense blocks differ from the worker's copy: a quarter of the bytes of full values, and nothing is lost. What
//! rounding leaves out of one difference is in the next.
//!
//! ```text
//! reply    number, whether differences follow or values | for each block: differences of 8 bits, or values
//! ```

use super::{Request, now};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, CopyOwner, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub(crate) struct PullChanges {
    /// The number of the last reply that the worker has added; 0 if it has no copy.
    pub held: u64,
    /// The blocks, the same each time.
    pub blocks: Vec<u32>,
}

impl Request for PullChanges {
    const NAME: &'static str = "pull changes";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.held, self.blocks.len() as u64]);
        payload.put(&self.blocks);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let held = reader.one()?;
        let count = usize::try_from(reader.one::<u64>()?).unwrap_or(usize::MAX);
        let blocks = reader.take::<u32>(count)?.to_vec();
        reader.end()?;
        Ok(PullChanges { held, blocks })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        now(server.tables.changes(CopyOwner::Worker(caller.rank), self.held, &self.blocks)?)
    }
}

/// Reads the first fields of a reply: its number, and whether differences follow.
pub(crate) fn take_number(reply: &mut Reader<'_>) -> Result<(u64, bool)> {
    Ok((reply.one()?, reply.one::<u64>()? == 1))
}
