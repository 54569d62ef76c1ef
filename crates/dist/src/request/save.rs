//! Write a checkpoint: what takes long. The moment was marked by [`cut`](super::cut).
//!
//! The first server begins and commits, because a worker need not see the directory; every server writes its own part.
//! A repeat is answered with the first one's answer.

use openfleet_table::checkpoint::{Commit, Manifest, ServerPart};
use serde::{Deserialize, Serialize};

use super::{Request, from_json, now, to_json};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Save {
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

impl Save {
    /// By which a repeat is recognised.
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

const ANSWER: &str = "answer to a save";

impl Request for Save {
    const NAME: &'static str = "save";
    const IS_SLOW: bool = true;

    /// JSON after its length, then, of a commit, the bytes of its states.
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

/// The save that changes build on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Base {
    /// Its id.
    pub id: String,
    /// The save whose moment it shows.
    pub moment: String,
}

/// Reads the answer to the beginning of a save of changes; where nothing stands there is none.
pub(crate) fn decode_base(reply: &[u8]) -> Result<Option<Base>> {
    from_json(reply, ANSWER)
}

/// Reads the answer to a write.
pub(crate) fn decode_part(reply: &[u8]) -> Result<ServerPart> {
    from_json(reply, ANSWER)
}

/// Reads the answer to a commit.
pub(crate) fn decode_manifest(reply: &[u8]) -> Result<Manifest> {
    from_json(reply, ANSWER)
}
