//! What the launcher tells the processes of a job while they run: a small JSON file that is replaced atomically.
//!
//! The launcher names the file in `OPENFLEET_JOB_FILE`; it exists before the first process starts. It is the counterpart of
//! `progress`, in which a process reports to the launcher:
//!
//! ```text
//! {"ending":false,"departed":[0,2]}
//! ```
//!
//! Only the launcher writes it. A reader never sees a partial file: it is written under another name and renamed.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The exit code of a worker that requests a restart, because the job returned to a checkpoint or another process recalled it.
/// Such a restart is free of charge: it does not count towards `--max-restarts`, as long as restarts are allowed.
pub const RESTART_EXIT_CODE: u8 = 101;

/// The state of the job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobFile {
    /// Whether the launcher has begun to end the job: it was interrupted, timed out or failed. Written before the launcher
    /// signals a process, so that the process knows why it is signalled.
    pub ending: bool,
    /// Ranks of the workers of this machine that exited with code 0, ascending. A restarted worker is removed.
    pub departed: Vec<usize>,
}

impl JobFile {
    /// Replaces the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be written or renamed.
    pub fn write(&self, path: &Path) -> Result<()> {
        let new = path.with_extension("json.new");
        std::fs::write(&new, self.to_text() + "\n").map_err(Error::io("write", &new))?;
        std::fs::rename(&new, path).map_err(Error::io("replace", path))
    }

    /// Reads the file. The default (not ending, no worker departed) if it is missing or malformed.
    pub fn read(path: &Path) -> Self {
        Self::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    /// Parses the content of such a file. The default if it is malformed.
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// The content of the file, without a line end.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_file_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("job.json");
        assert_eq!(JobFile::read(&path), JobFile::default());
        let file = JobFile { ending: true, departed: vec![0, 2] };
        file.write(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"ending\":true,\"departed\":[0,2]}\n");
        assert_eq!(JobFile::read(&path), file);
        std::fs::write(&path, "{\"departed\": [1], \"later\": 3}").unwrap();
        assert_eq!(JobFile::read(&path), JobFile { ending: false, departed: vec![1] });
        std::fs::write(&path, "half a li").unwrap();
        assert_eq!(JobFile::read(&path), JobFile::default());
    }
}
