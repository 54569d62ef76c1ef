//! Pulls rows of sparse tables for the unique keys of a batch: all stages and tables in one request. The encoding is in
//! [`pull`](crate::pull).

use super::{Request, now};
use crate::error::Result;
use crate::frame::Payload;
use crate::pull::PullView;
use crate::server::{Caller, Outcome, State};

/// The request: a payload that a [`PullEncoder`](crate::pull::PullEncoder) wrote, read in place.
#[derive(Debug, Clone)]
pub struct PullSparse(pub Payload);

impl Request for PullSparse {
    const NAME: &'static str = "pull sparse";

    fn encode(&self) -> Result<Payload> {
        Ok(self.0.clone())
    }

    fn decode(payload: Payload) -> Result<Self> {
        Ok(PullSparse(payload))
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        let mut reply = server.tables.reply();
        server.tables.pull(caller.rank, &PullView::decode(self.0.bytes())?, &mut reply)?;
        now(reply)
    }
}
