//! Takes a consistent snapshot on all servers.
//!
//! ```text
//! prepare   pushes are held back; the reply is what this server has applied
//! cut       the target is everything that any server has applied; pushes of it that are in flight may pass. When all of it is
//!           applied, the snapshot is taken and pushes continue. Until then the reply is "not yet"
//! release   the save is aborted: pushes continue
//! ```
//!
//! Every push goes to all servers, so what one server has applied, the others have applied or will receive shortly. If the
//! worker that saves dies, a server continues by itself after a timeout.

use openfleet_table::checkpoint::Work;
use serde::{Deserialize, Serialize};

use super::{Request, from_json, now, to_json};
use crate::error::Result;
use crate::frame::Payload;
pub use crate::server::CutAnswer as Answer;
use crate::server::{Caller, Outcome, State};

/// The request; every attempt has its own `id`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Cut {
    /// Hold pushes back.
    Prepare {
        /// Id of the attempt.
        id: String,
    },
    /// Take the snapshot when everything in `target` is applied.
    Cut {
        /// Id of the attempt.
        id: String,
        /// Everything that any server has applied.
        target: Work,
        /// The save to take changes since; `None` for all rows.
        since: Option<String>,
    },
    /// Abort the save.
    Release {
        /// Id of the attempt.
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
        now(to_json(&answer, "reply to a cut")?)
    }
}

/// Decodes a reply.
pub fn decode(reply: &[u8]) -> Result<Answer> {
    from_json(reply, "reply to a cut")
}
