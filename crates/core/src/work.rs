//! Identifies the work in a push.
//!
//! Every push has the number of its work, so that the tables can recognise a repeat. Local tables in a single process cannot
//! receive a push twice and ignore it; servers record what they have applied per stream.

use serde::{Deserialize, Serialize};

/// The steps of one stream in a push; a merged push has a range, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkId {
    /// One training thread of one worker.
    pub stream: u32,
    /// The first step in this push, counted from the start of the job.
    pub first_step: u64,
    /// The last step in this push.
    pub last_step: u64,
}

impl WorkId {
    /// The work of a single step.
    pub fn step(stream: u32, step: u64) -> Self {
        WorkId { stream, first_step: step, last_step: step }
    }
}
