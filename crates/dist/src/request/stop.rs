//! End the server, whoever still needs it.

use super::{Request, done};
use crate::error::Result;
use crate::frame::Payload;
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stop;

impl Request for Stop {
    const NAME: &'static str = "stop";

    fn encode(&self) -> Result<Payload> {
        Ok(Payload::new())
    }

    fn decode(_payload: Payload) -> Result<Self> {
        Ok(Stop)
    }

    /// The server ends once the answer is on its way.
    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        server.stop();
        done()
    }
}
