//! Let rows fade, and remove those that no longer earn their place: once, however often it is asked for.
//!
//! Shows and clicks decay with every shrink, so a repeat must not count twice: a request has a number of its own, drawn
//! at random, and its repeat is answered with the first one's counts.

use openfleet_table::Shrunk;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};
use crate::handshake::Nonce;
use crate::server::State;

/// What is to shrink, and how far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shrink {
    /// One sparse table by name, or all of them.
    pub table: Option<String>,
    /// What the caller counts time in, a day or a pass: the moment up to which ages are counted, and the stamp of rows
    /// that are touched from now on.
    pub now: u32,
    /// Rows that were last touched longer ago than this go; `u32::MAX` spares every age.
    pub max_age: u32,
    /// Whether a day ends here: with the ctr accessor, one more that a row was not seen.
    pub end_of_day: bool,
}

impl Default for Shrink {
    /// All tables; only what their accessors say.
    fn default() -> Self {
        Shrink { table: None, now: 0, max_age: u32::MAX, end_of_day: false }
    }
}

/// Encodes a request.
pub fn encode(payload: &mut Payload, id: Nonce, shrink: &Shrink) -> Result<()> {
    payload.clear();
    let what = serde_json::to_vec(shrink).map_err(|_| Error::Damaged { what: "shrink" })?;
    payload.put(&id);
    payload.put(&[what.len() as u64]);
    payload.put(&what);
    Ok(())
}

/// Reads an answer: how many rows went, and why.
pub fn decode(reply: &[u8]) -> Result<Shrunk> {
    let mut reader = Reader::new(reply);
    let counts = reader.take::<u64>(3)?;
    reader.end()?;
    let [by_score, by_unseen_days, by_age] = [0, 1, 2].map(|at| counts[at] as usize);
    Ok(Shrunk { by_score, by_unseen_days, by_age })
}

/// Answers a request.
pub fn apply(state: &State, payload: &[u8]) -> Result<Payload> {
    let mut reader = Reader::new(payload);
    let id: Nonce = reader.one()?;
    let length = reader.one::<u64>()?;
    let what = reader.take::<u8>(usize::try_from(length).unwrap_or(usize::MAX))?;
    reader.end()?;
    let shrink: Shrink = serde_json::from_slice(what).map_err(|_| Error::Damaged { what: "shrink" })?;
    let shrunk = state.shrink(id, &shrink)?;
    let mut reply = Payload::new();
    reply.put(&[shrunk.by_score as u64, shrunk.by_unseen_days as u64, shrunk.by_age as u64]);
    Ok(reply)
}
