//! GEO: asks workers with unsent progress to send it with their next exchange. The reply lists those that have not done so yet.

use super::{Request, now};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub(crate) struct GeoFlush {
    /// Unique per save; the same each time the save polls.
    pub ticket: u64,
}

impl Request for GeoFlush {
    const NAME: &'static str = "geo flush";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.ticket]);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let ticket = reader.one()?;
        reader.end()?;
        Ok(GeoFlush { ticket })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        let mut reply = Payload::new();
        reply.put(&server.geo_flush(caller, self.ticket));
        now(reply)
    }
}

/// Decodes a reply: the workers that have not flushed yet.
pub(crate) fn decode(reply: &[u8]) -> Result<Vec<u32>> {
    let mut reader = Reader::new(reply);
    let workers = reader.take::<u32>(reply.len() / size_of::<u32>())?.to_vec();
    reader.end()?;
    Ok(workers)
}
