//! Take tables from a checkpoint: those that are there, or those that will be made.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::server::State;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Where the checkpoint is.
    pub address: String,
    /// Whether what does not fit is left out rather than an error.
    pub partial: bool,
}

/// Encodes a request.
pub fn encode(payload: &mut Payload, load: &Load) -> Result<()> {
    payload.clear();
    payload.put(&serde_json::to_vec(load).map_err(|_| Error::Damaged { what: "load" })?);
    Ok(())
}

/// Answers a request, with what the program kept beside its tables. Loading twice is loading once.
pub fn apply(state: &State, payload: &[u8]) -> Result<Payload> {
    let load: Load = serde_json::from_slice(payload).map_err(|_| Error::Damaged { what: "load" })?;
    let mut states = Payload::new();
    states.put(&state.load(&load)?);
    Ok(states)
}
