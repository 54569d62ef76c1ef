//! End the server.

use crate::error::Result;
use crate::frame::Payload;
use crate::server::State;

/// Answers a request; the server ends once the answer is on its way.
pub fn apply(state: &State) -> Result<Payload> {
    state.stop();
    Ok(Payload::new())
}
