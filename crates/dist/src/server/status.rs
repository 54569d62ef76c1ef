//! The status of a server, for people and tools.

use serde::{Deserialize, Serialize};

/// The status of a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Name, rows and bytes of each sparse table.
    pub sparse: Vec<(String, u64, u64)>,
    /// Name, floats and step of each dense block.
    pub dense: Vec<(String, u64, u64)>,
    /// Per stream: the number of its first step that has not been applied.
    pub positions: Vec<(u32, u64)>,
    /// In sync mode: the streams that the current step waits for.
    pub waiting_for: Vec<u32>,
    /// Number of completed collectives.
    pub collectives: u64,
    /// The workers that a barrier or all-reduce waits for.
    pub workers_awaited: Vec<u32>,
    /// Workers that have departed.
    pub workers_left: Vec<u32>,
    /// Gradients refused because they were not finite.
    pub non_finite: u64,
    /// Requests that were recognised as repeats and not applied again.
    pub repeats: u64,
    /// Workers that are connected.
    pub connected: Vec<u32>,
    /// Current generation: how often the servers started or returned to a checkpoint.
    pub generation: u64,
}
