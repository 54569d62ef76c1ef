//! What a shrink removes.

use openfleet_table::{Shrunk, SparseTable};
use serde::{Deserialize, Serialize};

/// What is to shrink, and how far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shrink {
    /// One sparse table by name, or all of them.
    pub table: Option<String>,
    /// What the caller counts time in, a day or a pass: the moment up to which ages are counted, and the stamp of rows
    /// that are touched from now on. Without it a pass ends here: it is one more than the last time.
    pub now: Option<u32>,
    /// Rows that were last touched longer ago than this are removed; `u32::MAX` spares every age.
    pub max_age: u32,
    /// Whether a day ends here: with the ctr accessor, one more that a row was not seen.
    pub end_of_day: bool,
}

impl Shrink {
    /// To one table.
    pub fn apply(&self, table: &SparseTable) -> Shrunk {
        if self.end_of_day {
            table.end_of_day();
        }
        let now = self.now.unwrap_or_else(|| table.latest_stamp().saturating_add(1));
        let shrunk = table.shrink(now, self.max_age);
        table.set_stamp(now);
        shrunk
    }
}

impl Default for Shrink {
    /// All tables; only what their accessors say.
    fn default() -> Self {
        Shrink { table: None, now: None, max_age: u32::MAX, end_of_day: false }
    }
}
