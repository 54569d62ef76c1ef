//! Pushes the gradients of one step of a stream, or of several merged steps; the encoding is in
//! [`gradients`](crate::gradients).
//!
//! Every push has the number of its work, and a server applies a piece of work once: a repeat is answered like the original,
//! with the current values. If streams step together, the reply comes when every member of the group has pushed the step and it
//! has been applied; otherwise at once.

use super::Request;
use crate::error::Result;
use crate::frame::Payload;
use crate::server::{Caller, Outcome, Pushing, State};

/// The request: a payload that a [`PushEncoder`](crate::gradients::PushEncoder) wrote, read in place.
#[derive(Debug, Clone)]
pub(crate) struct Push(pub Payload);

impl Request for Push {
    const NAME: &'static str = "push";

    fn encode(&self) -> Result<Payload> {
        Ok(self.0.clone())
    }

    fn decode(payload: Payload) -> Result<Self> {
        Ok(Push(payload))
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        server.push(caller, Pushing::Gradients, self.0)
    }
}
