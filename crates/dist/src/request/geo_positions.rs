//! GEO: the servers have all progress of a worker up to these steps of its streams. A restarted worker resumes there.

use super::{Request, done};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub(crate) struct GeoPositions {
    /// Stream, and how many of its steps the servers have.
    pub positions: Vec<(u32, u64)>,
}

impl Request for GeoPositions {
    const NAME: &'static str = "geo positions";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.positions.len() as u64]);
        payload.put(&self.positions.iter().map(|(stream, _)| *stream).collect::<Vec<_>>());
        payload.put(&self.positions.iter().map(|(_, position)| *position).collect::<Vec<_>>());
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let count = usize::try_from(reader.one::<u64>()?).unwrap_or(usize::MAX);
        let streams = reader.take::<u32>(count)?;
        let positions = reader.take::<u64>(count)?;
        reader.end()?;
        Ok(GeoPositions { positions: streams.iter().copied().zip(positions.iter().copied()).collect() })
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        server.geo_flushed(caller, &self.positions)?;
        done()
    }
}
