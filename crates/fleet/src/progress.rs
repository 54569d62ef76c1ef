//! How a process tells the launcher how it is doing: a file that holds one line of JSON and is replaced whole.
//!
//! The launcher names the file in `OPENFLEET_PROGRESS_FILE`. Every field may be left out, and fields it does not know are
//! passed over, so that processes and launchers of different versions understand each other:
//!
//! ```text
//! {"state": "training", "samples": 512000, "samples_per_second": 23810.5}
//! ```
//!
//! `state` is any short word; `done` has a meaning: a server that says so has been left by all of its workers, and may end
//! before they do. A process that never writes the file is fine. A reader never sees half a line: it is written under another name and renamed.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How a process is doing.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// What it does, in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// How many samples it has trained on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// How many a second, of late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
}

impl Progress {
    /// The word of a server that has been left by all of its workers.
    pub const DONE: &'static str = "done";

    /// Replaces the file. Not worth failing a training run for: callers may ignore the error.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string(self).unwrap_or_default();
        let new = path.with_extension("json.new");
        std::fs::write(&new, text + "\n").map_err(Error::io("write", &new))?;
        std::fs::rename(&new, path).map_err(Error::io("replace", path))
    }

    /// What the file says; nothing, if there is none or it is not ours.
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Whether this is the word of a server that has been left by all of its workers.
    pub fn is_done(&self) -> bool {
        self.state.as_deref() == Some(Self::DONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_not_understood_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("worker.0.json");
        assert_eq!(Progress::read(&path), Progress::default());
        let progress = Progress { state: Some("training".into()), samples: Some(7), samples_per_second: Some(1.5) };
        progress.write(&path).unwrap();
        let line = "{\"state\":\"training\",\"samples\":7,\"samples_per_second\":1.5}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), line);
        assert_eq!(Progress::read(&path), progress);
        std::fs::write(&path, "{\"samples\": 8, \"mood\": \"good\"}").unwrap();
        assert_eq!(Progress::read(&path).samples, Some(8));
        std::fs::write(&path, "half a li").unwrap();
        assert_eq!(Progress::read(&path), Progress::default());
    }
}
