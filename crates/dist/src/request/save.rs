//! Writes a checkpoint, the slow part of a save. The snapshot was taken by [`cut`](super::cut).
//!
//! The first server begins and commits, because a worker may not have access to the directory; every server writes its own
//! part. A repeat gets the reply of the original.

use openfleet_table::checkpoint::{Commit, Manifest, ServerPart};
use serde::{Deserialize, Serialize};

use super::{Request, from_json, now, to_json};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Save {
    /// Prepare the address for a save.
    Begin {
        /// Address of the checkpoint.
        address: String,
        /// Id of the save.
        id: String,
        /// Whether an existing checkpoint may be replaced.
        replace: bool,
        /// Whether to save only what changed since the existing checkpoint. The reply then tells which one that is.
        delta: bool,
    },
    /// Write the snapshot.
    Write {
        /// Address of the checkpoint.
        address: String,
        /// Id of the save.
        id: String,
        /// Id of the snapshot.
        cut: String,
        /// Tables and parameters to write; empty for all of them.
        only: Vec<String>,
        /// Whether to leave out optimizer state.
        without_state: bool,
    },
    /// Commit the parts of all servers as one checkpoint.
    Commit {
        /// Address of the checkpoint.
        address: String,
        /// What the manifest is made from.
        commit: Box<Commit>,
    },
    /// Remove the written files.
    Abandon {
        /// Address of the checkpoint.
        address: String,
        /// Id of the save.
        id: String,
    },
}

impl Save {
    /// The key that identifies repeats.
    fn key(&self) -> (&str, &'static str) {
        match self {
            Save::Begin { id, .. } => (id, "begin"),
            Save::Write { id, .. } => (id, "write"),
            Save::Commit { commit, .. } => (&commit.id, "commit"),
            Save::Abandon { id, .. } => (id, "abandon"),
        }
    }

    fn run(&self, server: &State) -> Result<Payload> {
        match self {
            Save::Begin { address, id, replace, delta } => {
                let existing = server.begin_save(address, id, *replace, *delta)?;
                let base = |existing: Manifest| Base { moment: existing.moment().to_owned(), id: existing.id };
                if *delta { to_json(&existing.map(base), ANSWER) } else { Ok(Payload::new()) }
            }
            Save::Write { address, id, cut, only, without_state } => {
                to_json(&server.write_save(address, id, cut, only, *without_state)?, ANSWER)
            }
            Save::Commit { address, commit } => to_json(&server.commit_save(address, commit.as_ref().clone())?, ANSWER),
            Save::Abandon { address, id } => {
                server.abandon_save(address, id)?;
                Ok(Payload::new())
            }
        }
    }
}

const ANSWER: &str = "reply to a save";

impl Request for Save {
    const NAME: &'static str = "save";
    const IS_SLOW: bool = true;

    /// The length of the JSON, the JSON, and for a commit the bytes of its states.
    fn encode(&self) -> Result<Payload> {
        let json = serde_json::to_vec(self).map_err(|_| Error::Damaged { what: "save" })?;
        let mut payload = Payload::new();
        payload.put(&(json.len() as u64).to_le_bytes());
        payload.put(&json);
        if let Save::Commit { commit, .. } = self {
            payload.put(&commit.states);
        }
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let damaged = || Error::Damaged { what: "save" };
        let (length, rest) = payload.bytes().split_first_chunk().ok_or_else(damaged)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| damaged())?;
        let mut ask: Save = from_json(rest.get(..length).ok_or_else(damaged)?, "save")?;
        if let Save::Commit { commit, .. } = &mut ask {
            // Arrays of a payload begin at multiples of 8 bytes.
            commit.states = rest.get(length.next_multiple_of(8)..).unwrap_or_default().to_vec();
        }
        Ok(ask)
    }

    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        let (id, stage) = self.key();
        now(server.once(id, stage, || self.run(server))?)
    }
}

/// The checkpoint that a delta is based on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Base {
    /// Id of its save.
    pub id: String,
    /// The save whose snapshot it contains.
    pub moment: String,
}

/// Decodes the reply to the start of a delta save; `None` if there is no checkpoint at the address.
pub(crate) fn decode_base(reply: &[u8]) -> Result<Option<Base>> {
    from_json(reply, ANSWER)
}

/// Decodes the reply to a write.
pub(crate) fn decode_part(reply: &[u8]) -> Result<ServerPart> {
    from_json(reply, ANSWER)
}

/// Decodes the reply to a commit.
pub(crate) fn decode_manifest(reply: &[u8]) -> Result<Manifest> {
    from_json(reply, ANSWER)
}
