//! GEO: sends a worker's differences, and returns the rows that others have changed and the dense values.
//!
//! ```text
//! request   the bytes of a push, with differences instead of gradients
//! reply     ticket | for each table: changed keys, their rows
//!           | for each block: values, or how all dense values have changed, as for the request "pull changes"
//! ```
//!
//! The server adds differences as they are. A repeated request gets the same reply, byte for byte: the set of changed rows was
//! consumed by the original and cannot be read again.

use super::Request;
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, Pushing, State};

/// The request: a payload that a [`PushEncoder`](crate::gradients::PushEncoder) wrote, read in place.
#[derive(Debug, Clone)]
pub struct ExchangeGeo(pub Payload);

impl Request for ExchangeGeo {
    const NAME: &'static str = "exchange geo";

    fn encode(&self) -> Result<Payload> {
        Ok(self.0.clone())
    }

    fn decode(payload: Payload) -> Result<Self> {
        Ok(ExchangeGeo(payload))
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        server.push(caller, Pushing::Differences, self.0)
    }
}

/// Reads the first field of a reply: the ticket of a save that waits for the worker's unsent progress, or 0.
pub fn take_ticket(reply: &mut Reader<'_>) -> Result<u64> {
    reply.one()
}

/// The rows of one table that others changed.
#[derive(Debug)]
pub struct ChangedView<'a> {
    /// The keys.
    pub keys: &'a [u64],
    /// Their current rows.
    pub rows: &'a [f32],
}

/// Reads the next table of a reply.
pub fn take_changed<'a>(reply: &mut Reader<'a>, dim: usize) -> Result<ChangedView<'a>> {
    let count = reply.one::<u64>()? as usize;
    let keys = reply.take(count)?;
    Ok(ChangedView { keys, rows: reply.take(count.saturating_mul(dim))? })
}
