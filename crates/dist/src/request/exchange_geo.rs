//! GEO: a worker's differences go up, and the rows that others changed come down with the dense values, in one exchange.
//!
//! ```text
//! request   work | for each table: keys, differences | for each block: difference
//! answer    for each table: changed keys, their rows | for each block: values
//! ```
//!
//! The server adds differences as they are. A repeated request gets the first one's answer again, byte for byte: the set of
//! changed rows was taken for it and is not taken twice.

use openfleet_core::WorkId;

use super::push::PushView;
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Outcome, State};

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

/// Answers a request. The bytes of a push serve as the bytes of an exchange: differences take the gradients' place.
pub fn apply(state: &State, worker: u32, payload: Payload) -> Result<Outcome> {
    let work = PushView::decode(payload.bytes())?.work;
    match state.hold_exchange(worker, work, payload) {
        Ok(held) => Ok(held),
        Err(payload) => Ok(Outcome::Now(state.exchange_geo(worker, &PushView::decode(payload.bytes())?))),
    }
}

/// The work of one exchange of a worker.
pub fn work(worker: u32, exchange: u64) -> WorkId {
    WorkId::step(worker, exchange)
}
