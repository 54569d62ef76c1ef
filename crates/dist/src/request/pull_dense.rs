//! Values of dense blocks: all that one server keeps, in one request.
//!
//! The answer is their values, one block after the other, in the order asked for.

use openfleet_core::strategy::FloatWidth;

use super::{Request, now};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::gradients::{put_width, take_width};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub struct PullDense {
    /// How the answer's floats travel.
    pub width: FloatWidth,
    /// Which blocks.
    pub blocks: Vec<u32>,
}

impl Request for PullDense {
    const NAME: &'static str = "pull dense";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.blocks.len() as u32, put_width(self.width)]);
        payload.put(&self.blocks);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let head = reader.take::<u32>(2)?;
        let width = take_width(head[1])?;
        let blocks = reader.take::<u32>(head[0] as usize)?.to_vec();
        reader.end()?;
        Ok(PullDense { width, blocks })
    }

    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        let mut reply = Payload::new();
        server.tables.put_values(self.width, self.blocks.into_iter(), &mut reply)?;
        now(reply)
    }
}
