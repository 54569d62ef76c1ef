//! Which piece of work a push stands for.
//!
//! Every push names the work it carries, so that whoever keeps a table can recognise a repeat. The embedded tables of a
//! single process cannot receive one twice and ignore it; servers keep what they have applied per stream.

use serde::{Deserialize, Serialize};

/// The steps of one stream that a push stands for; a merged push stands for a range, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkId {
    /// One training thread of one worker.
    pub stream: u32,
    /// The first step in this push, counted over the life of the job.
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
