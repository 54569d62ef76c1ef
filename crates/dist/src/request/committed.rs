//! A checkpoint of this run was committed: from now on servers return to it.

use super::{Request, done, from_json, to_json};
use crate::error::Result;
use crate::frame::Payload;
use crate::server::{Caller, Cut, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub(crate) struct Committed(pub Cut);

impl Request for Committed {
    const NAME: &'static str = "committed";

    fn encode(&self) -> Result<Payload> {
        to_json(&self.0, "committed checkpoint")
    }

    fn decode(payload: Payload) -> Result<Self> {
        Ok(Committed(from_json(payload.bytes(), "committed checkpoint")?))
    }

    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        server.committed(self.0);
        done()
    }
}
