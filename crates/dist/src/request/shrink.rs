//! Decays rows and removes those with low scores. Idempotent.
//!
//! Shows and clicks decay with every shrink, so a repeat must not be applied twice: a request has an id, and a repeat gets the
//! counts of the original.

use openfleet_table::Shrunk;

use super::{Request, from_json, now};
use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};
use crate::handshake::Nonce;
pub use crate::server::Shrink;
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub struct ShrinkRequest {
    /// Unique per shrink; repeats have the same one.
    pub id: Nonce,
    /// Which rows to remove.
    pub shrink: Shrink,
}

impl Request for ShrinkRequest {
    const NAME: &'static str = "shrink";
    const IS_SLOW: bool = true;

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        let what = serde_json::to_vec(&self.shrink).map_err(|_| Error::Damaged { what: "shrink" })?;
        payload.put(&self.id);
        payload.put(&[what.len() as u64]);
        payload.put(&what);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let id: Nonce = reader.one()?;
        let length = reader.one::<u64>()?;
        let what = reader.take::<u8>(usize::try_from(length).unwrap_or(usize::MAX))?;
        reader.end()?;
        Ok(ShrinkRequest { id, shrink: from_json(what, "shrink")? })
    }

    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        let shrunk = server.shrink(self.id, &self.shrink)?;
        let mut reply = Payload::new();
        reply.put(&[shrunk.by_score as u64, shrunk.by_unseen_days as u64, shrunk.by_age as u64]);
        now(reply)
    }
}

/// Decodes a reply: how many rows were removed, and why.
pub fn decode(reply: &[u8]) -> Result<Shrunk> {
    let mut reader = Reader::new(reply);
    let counts = reader.take::<u64>(3)?;
    reader.end()?;
    let [by_score, by_unseen_days, by_age] = [0, 1, 2].map(|at| counts[at] as usize);
    Ok(Shrunk { by_score, by_unseen_days, by_age })
}
