//! By how much dense blocks differ from what the worker holds of them: a quarter of the bytes of their values, and nothing is lost.
//! What rounding leaves out of one difference is in the next.
//!
//! ```text
//! answer   number, whether differences follow or values | for each block: differences of 8 bits, or values
//! ```

use super::{Request, now};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub(crate) struct PullChanges {
    /// The number of the last answer that the worker has added; 0 where it holds nothing.
    pub held: u64,
    /// Which blocks, the same each time.
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
        now(server.tables.put_changes(caller.rank, self.held, &self.blocks)?)
    }
}

/// Reads the beginning of an answer: its number, and whether differences follow.
pub(crate) fn take_number(reply: &mut Reader<'_>) -> Result<(u64, bool)> {
    Ok((reply.one()?, reply.one::<u64>()? == 1))
}
