//! Names of a job and of the processes in it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The name that all processes of a job share; a process of another job is refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

impl JobId {
    /// Maximum length in bytes.
    pub const MAX_BYTES: usize = 128;

    /// Fails unless the name could be a file name: letters, digits, `-`, `_` and `.`, beginning with a letter or a digit, at
    /// most [`JobId::MAX_BYTES`].
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let allowed = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if allowed && begins && name.len() <= Self::MAX_BYTES { Ok(JobId(name)) } else { Err(Error::JobId { name }) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for JobId {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        JobId::new(name)
    }
}

impl From<JobId> for String {
    fn from(job: JobId) -> Self {
        job.0
    }
}

/// Counts the restarts of a rank. A restarted process has a larger number, and a peer that has seen it refuses the older
/// process: only one process of a rank is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// The incarnation after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Incarnation(self.0 + 1)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ids_could_be_file_names() {
        for name in ["job-17", "a.b_c", "0"] {
            assert_eq!(JobId::new(name).unwrap().as_str(), name);
        }
        let long = "j".repeat(JobId::MAX_BYTES + 1);
        for name in ["", "..", "a/b", "a b", "-x", "\u{e9}", &long] {
            assert!(JobId::new(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_later_incarnation_is_larger() {
        assert!(Incarnation::default().next() > Incarnation::default());
    }
}
