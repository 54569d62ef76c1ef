//! Options of a shrink.

use openfleet_table::{Shrunk, SparseTable};
use serde::{Deserialize, Serialize};

/// Which rows a shrink removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shrink {
    /// One sparse table by name, or all of them.
    pub table: Option<String>,
    /// The current time in the caller's unit (a day or a pass): ages are counted up to it, and rows that are touched from now
    /// on are stamped with it. If it is `None`, a pass ends here, and the time is one more than the last time.
    pub now: Option<u32>,
    /// Rows that were last touched longer ago than this are removed; `u32::MAX` keeps rows of every age.
    pub max_age: u32,
    /// Whether a day ends here: the ctr accessor then adds one unseen day to every row.
    pub end_of_day: bool,
}

impl Shrink {
    /// Shrinks one table.
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
    /// All tables, using only the rules of their accessors.
    fn default() -> Self {
        Shrink { table: None, now: None, max_age: u32::MAX, end_of_day: false }
    }
}
