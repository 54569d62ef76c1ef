//! By which factor the gradients of a step that was measured are to be scaled. Answered when the step is applied, with the values of
//! the blocks that are named; a repeat is answered alike.
//!
//! Workers clip by the global norm of what they push together with it: each server's answer to a measured push is the sum of
//! squares of its part of the mean gradients, and all workers make the same factor of them.

use super::Request;
use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Which stream.
    pub stream: u32,
    /// Its step.
    pub step: u64,
    /// At most 1; 1 leaves gradients as they are.
    pub factor: f32,
    /// The blocks whose new values are wanted.
    pub blocks: Vec<u32>,
}

impl Request for Scale {
    const NAME: &'static str = "scale";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.step]);
        payload.put(&[self.stream, self.factor.to_bits()]);
        payload.put(&self.blocks);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let step = reader.one()?;
        let head = reader.take::<u32>(2)?;
        let (stream, factor) = (head[0], f32::from_bits(head[1]));
        if !(0.0..=1.0).contains(&factor) {
            return Err(Error::Damaged { what: "factor of a step" });
        }
        let blocks = reader.take::<u32>(payload.bytes().len().saturating_sub(16) / size_of::<u32>())?.to_vec();
        reader.end()?;
        Ok(Scale { stream, step, factor, blocks })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        server.scale(caller, (self.stream, self.step), self.factor, self.blocks)
    }
}
