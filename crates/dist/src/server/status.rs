//! How a server stands, for people and tools.

use serde::{Deserialize, Serialize};

/// How a server stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Name, rows and bytes of each sparse table.
    pub sparse: Vec<(String, u64, u64)>,
    /// Name, floats and step of each dense block.
    pub dense: Vec<(String, u64, u64)>,
    /// The first of its own steps of each stream that has not been applied.
    pub positions: Vec<(u32, u64)>,
    /// In sync mode: the streams that the current step waits for.
    pub waiting_for: Vec<u32>,
    /// Barriers and all-reduces that have ended here.
    pub collectives: u64,
    /// The workers that a barrier or all-reduce waits for.
    pub workers_awaited: Vec<u32>,
    /// Workers that have departed.
    pub workers_left: Vec<u32>,
    /// Gradients refused because they were not finite.
    pub non_finite: u64,
    /// Requests to change something that had been done before.
    pub repeats: u64,
    /// Workers that are connected.
    pub connected: Vec<u32>,
    /// How often the servers began or returned to a checkpoint.
    pub generation: u64,
}
