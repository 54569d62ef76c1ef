//! Pulls values of dense blocks: all that one server has, in one request.
//!
//! The reply is their values, one block after the other, in the requested order.

use super::{Request, now};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub struct PullDense {
    /// Numbers of the blocks.
    pub blocks: Vec<u32>,
}

impl Request for PullDense {
    const NAME: &'static str = "pull dense";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&self.blocks);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let blocks = reader.take::<u32>(payload.bytes().len() / size_of::<u32>())?.to_vec();
        reader.end()?;
        Ok(PullDense { blocks })
    }

    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        now(server.tables.values_of(&self.blocks)?)
    }
}
