//! What can go wrong while values travel between a worker and its tables.

use openfleet_core::{Hint, Hinted};

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong while values travel between a worker and its tables.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The table refused the request.
    #[error("{action} table `{table}` failed")]
    Table {
        /// Pull or push.
        action: &'static str,
        /// The table's name.
        table: String,
        /// What the table said.
        source: openfleet_table::Error,
    },
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::Table { source, .. } => source.hint(),
        }
    }
}
