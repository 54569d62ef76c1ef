//! Bring all servers to the same moment, and mark it.
//!
//! ```text
//! prepare   pushes are held back; the answer is what has been applied here
//! cut       the asker has put together what any server has applied; what of that is on its way here is let through,
//!           and when all of it is applied, the moment is marked and everything goes on. Until then: "not yet"
//! release   it comes to nothing: everything goes on
//! ```
//!
//! Every push goes to all servers, so what one has applied the others have or will get within a moment. A server whose
//! asker dies goes on by itself after a while.

use openfleet_table::checkpoint::Work;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::server::State;

/// What is asked; `id` is another one for every attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// Hold pushes back.
    Prepare {
        /// Which attempt.
        id: String,
    },
    /// Mark the moment when all of this is applied.
    Cut {
        /// Which attempt.
        id: String,
        /// What any server has applied.
        target: Work,
        /// The save since which changes are wanted; all rows where there is none.
        since: Option<String>,
    },
    /// Forget it.
    Release {
        /// Which attempt.
        id: String,
    },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Pushes are held back, and this has been applied.
    Prepared(Work),
    /// Something else is going on that must not be cut through; ask again.
    Busy(String),
    /// The moment is marked, or nothing is left to do.
    Done,
    /// Some of it is still on its way; ask again.
    NotYet(Work),
}

/// Encodes a request.
pub fn encode(payload: &mut Payload, ask: &Ask) -> Result<()> {
    payload.clear();
    payload.put(&serde_json::to_vec(ask).map_err(|_| Error::Damaged { what: "cut" })?);
    Ok(())
}

/// Reads an answer.
pub fn decode(reply: &[u8]) -> Result<Answer> {
    serde_json::from_slice(reply).map_err(|_| Error::Damaged { what: "answer to a cut" })
}

/// Answers a request.
pub fn apply(state: &State, payload: &[u8]) -> Result<Payload> {
    let ask: Ask = serde_json::from_slice(payload).map_err(|_| Error::Damaged { what: "cut" })?;
    let answer = match ask {
        Ask::Prepare { id } => state.prepare_cut(&id)?,
        Ask::Cut { id, target, since } => state.cut(&id, &target, since.as_deref())?,
        Ask::Release { id } => {
            state.release_cut(&id);
            Answer::Done
        }
    };
    let mut reply = Payload::new();
    reply.put(&serde_json::to_vec(&answer).map_err(|_| Error::Damaged { what: "answer to a cut" })?);
    Ok(reply)
}
