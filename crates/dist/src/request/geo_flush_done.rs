//! GEO: a worker was asked to flush, and has sent all its progress.

use super::{Request, done, geo_flush::GeoFlush};
use crate::error::Result;
use crate::frame::Payload;
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub(crate) struct GeoFlushDone {
    /// The ticket of the [`GeoFlush`].
    pub ticket: u64,
}

impl Request for GeoFlushDone {
    const NAME: &'static str = "geo flush done";

    fn encode(&self) -> Result<Payload> {
        GeoFlush { ticket: self.ticket }.encode()
    }

    fn decode(payload: Payload) -> Result<Self> {
        let GeoFlush { ticket } = GeoFlush::decode(payload)?;
        Ok(GeoFlushDone { ticket })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        server.geo_flush_done(caller, self.ticket);
        done()
    }
}
