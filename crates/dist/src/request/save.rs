//! Write a checkpoint: what takes long. The moment was marked by [`cut`](super::cut).
//!
//! The first server begins and commits, because a worker need not see the directory; every server writes its own part.
//! A repeat is answered with the first one's answer.

use openfleet_table::checkpoint::{Commit, Manifest, Part};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::server::State;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// Make room for a save.
    Begin {
        /// Where.
        address: String,
        /// Which save.
        id: String,
        /// Whether a checkpoint that stands there may be replaced.
        replace: bool,
        /// Whether it is to be of what has changed since the one that stands there: then the answer says which that is.
        delta: bool,
    },
    /// Write what was marked.
    Write {
        /// Where.
        address: String,
        /// Which save.
        id: String,
        /// By which cut.
        cut: String,
        /// Which tables and parameters; all of them where none is named.
        only: Vec<String>,
        /// Whether the optimizer's state is left out.
        without_state: bool,
    },
    /// Make it a checkpoint.
    Commit {
        /// Where.
        address: String,
        /// What it is to become.
        commit: Box<Commit>,
    },
    /// Remove what was written.
    Abandon {
        /// Where.
        address: String,
        /// Which save.
        id: String,
    },
}

impl Ask {
    /// By which a repeat is known.
    pub(crate) fn key(&self) -> (&str, &'static str) {
        match self {
            Ask::Begin { id, .. } => (id, "begin"),
            Ask::Write { id, .. } => (id, "write"),
            Ask::Commit { commit, .. } => (&commit.id, "commit"),
            Ask::Abandon { id, .. } => (id, "abandon"),
        }
    }
}

/// Encodes a request: JSON after its length, then, of a commit, the bytes of its states.
pub fn encode(payload: &mut Payload, ask: &Ask) -> Result<()> {
    payload.clear();
    let json = serde_json::to_vec(ask).map_err(|_| Error::Damaged { what: "save" })?;
    payload.put(&(json.len() as u64).to_le_bytes());
    payload.put(&json);
    if let Ask::Commit { commit, .. } = ask {
        payload.put(&commit.states);
    }
    Ok(())
}

/// The save that changes build on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Base {
    /// Its id.
    pub id: String,
    /// The save whose moment it shows.
    pub moment: String,
}

/// Reads the answer to the beginning of a save of changes; where nothing stands there is none.
pub fn decode_base(reply: &[u8]) -> Result<Option<Base>> {
    decode(reply)
}

/// Reads the answer to a write.
pub fn decode_part(reply: &[u8]) -> Result<Part> {
    decode(reply)
}

/// Reads the answer to a commit.
pub fn decode_manifest(reply: &[u8]) -> Result<Manifest> {
    decode(reply)
}

fn decode<T: DeserializeOwned>(reply: &[u8]) -> Result<T> {
    serde_json::from_slice(reply).map_err(|_| Error::Damaged { what: "answer to a save" })
}

/// Answers a request.
pub fn apply(state: &State, payload: &[u8]) -> Result<Payload> {
    let damaged = || Error::Damaged { what: "save" };
    let (length, rest) = payload.split_first_chunk().ok_or_else(damaged)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| damaged())?;
    let json = rest.get(..length).ok_or_else(damaged)?;
    let mut ask: Ask = serde_json::from_slice(json).map_err(|_| damaged())?;
    if let Ask::Commit { commit, .. } = &mut ask {
        // Arrays of a payload begin at multiples of 8 bytes.
        commit.states = rest.get(length.next_multiple_of(8)..).unwrap_or_default().to_vec();
    }
    state.save(ask)
}
