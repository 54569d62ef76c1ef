//! GEO: a worker's differences go up, and the rows that others changed come down with the dense values, in one exchange.
//!
//! ```text
//! request   the bytes of a push, with differences in the place of gradients
//! answer    ticket | for each table: changed keys, their rows | for each block: values
//! ```
//!
//! The server adds differences as they are. A repeated request gets the first one's answer again, byte for byte: the set of
//! changed rows was taken for it and is not taken twice.

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

/// Reads the beginning of an answer: the ticket of somebody who waits for all that the worker has learnt, or 0.
pub fn take_ticket(reply: &mut Reader<'_>) -> Result<u64> {
    reply.one()
}

/// The rows of one table that others changed.
#[derive(Debug)]
pub struct ChangedView<'a> {
    /// The keys.
    pub keys: &'a [u64],
    /// Their rows as they are now.
    pub rows: &'a [f32],
}

/// Reads the next table of an answer.
pub fn take_changed<'a>(reply: &mut Reader<'a>, dim: usize) -> Result<ChangedView<'a>> {
    let count = reply.one::<u64>()? as usize;
    let keys = reply.take(count)?;
    Ok(ChangedView { keys, rows: reply.take(count.saturating_mul(dim))? })
}
