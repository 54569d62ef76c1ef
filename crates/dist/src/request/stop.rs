//! Stops the server, even if workers still use it.

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

    /// The server shuts down once the reply is sent.
    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        server.stop();
        done()
    }
}
