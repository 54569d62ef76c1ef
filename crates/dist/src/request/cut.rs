//! Bring all servers to the same moment, and mark it.
//!
//! ```text
//! prepare   pushes are held back; the answer is what has been applied here
//! cut       the asker has put together what any server has applied; what of that is on its way here is let through,
//!           and when all of it is applied, the moment is marked and everything goes on. Until then: "not yet"
//! release   the save is given up: everything goes on
//! ```
//!
//! Every push goes to all servers, so what one has applied the others have or will get within a moment. A server whose
//! asker dies goes on by itself after a while.

use openfleet_table::checkpoint::Work;
use serde::{Deserialize, Serialize};

use super::{Request, from_json, now, to_json};
use crate::error::Result;
use crate::frame::Payload;
pub use crate::server::CutAnswer as Answer;
use crate::server::{Caller, Outcome, State};

/// The request; `id` is another one for every attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Cut {
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
    /// Give the save up.
    Release {
        /// Which attempt.
        id: String,
    },
}

impl Request for Cut {
    const NAME: &'static str = "cut";

    fn encode(&self) -> Result<Payload> {
        to_json(self, "cut")
    }

    fn decode(payload: Payload) -> Result<Self> {
        from_json(payload.bytes(), "cut")
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        let answer = match self {
            Cut::Prepare { id } => server.prepare_cut(caller, &id)?,
            Cut::Cut { id, target, since } => server.cut(&id, &target, since.as_deref())?,
            Cut::Release { id } => {
                server.release_cut(&id);
                Answer::Done
            }
        };
        now(to_json(&answer, "answer to a cut")?)
    }
}

/// Reads an answer.
pub fn decode(reply: &[u8]) -> Result<Answer> {
    from_json(reply, "answer to a cut")
}
