//! Sets the scale factor for the gradients of a measured step. The reply comes when the step is applied, with the values of the
//! named blocks; a repeat gets the same kind of reply.
//!
//! Workers use it to clip by the global norm of what they push together: each server's reply to a measured push is the sum of
//! squares of its part of the mean gradients, and all workers compute the same factor from these sums.

use super::Request;
use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub struct Scale {
    /// Number of the stream.
    pub stream: u32,
    /// Its step.
    pub step: u64,
    /// At most 1; 1 leaves gradients unchanged.
    pub factor: f32,
    /// The blocks whose new values are requested.
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
