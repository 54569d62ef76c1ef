//! What a process reports to the launcher: a file with one line of JSON that is replaced atomically.
//!
//! The launcher names the file in `OPENFLEET_PROGRESS_FILE`. Every field is optional and unknown fields are ignored, so that
//! processes and launchers of different versions understand each other:
//!
//! ```text
//! {"state":"training","samples":512000,"samples_per_second":23810.5}
//! {"checkpoint":"model","checkpoint_step":120,"step":155,"silent":[{"role":"worker","rank":1,"seconds":4.5}]}
//! ```
//!
//! A process need not write the file. The file counts only while its writer runs. A reader never sees a partial line: the file
//! is written under another name and renamed.

use std::path::Path;

use openfleet_core::topology::Role;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The progress of a process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// What it does, in one word. [`Progress::DONE`] has a meaning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Samples trained so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Samples per second, recently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Servers only: address of the newest checkpoint that this run has committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// The step of `checkpoint`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_step: Option<u64>,
    /// Servers only: the current step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Peers that this process has not heard from recently.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub silent: Vec<Silent>,
}

/// A peer that has not been heard from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Silent {
    /// `server` or `worker` in the file.
    #[serde(with = "RoleName")]
    pub role: Role,
    /// Its rank within the role.
    pub rank: usize,
    /// The seconds of silence.
    pub seconds: f64,
}

/// The lower-case spelling of a [`Role`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Role", rename_all = "lowercase")]
enum RoleName {
    Worker,
    Server,
}

impl Progress {
    /// The state of a process that no longer needs its peers: a server that all workers have departed from, or a worker that
    /// has departed and still exports or evaluates. Servers may end while such workers run.
    pub const DONE: &'static str = "done";

    /// Replaces the file. Callers may ignore the error: a training run should not fail because of it.
    ///
    /// # Errors
    ///
    /// If the file cannot be written or renamed.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string(self).unwrap_or_default();
        let new = path.with_extension("json.new");
        std::fs::write(&new, text + "\n").map_err(Error::io("write", &new))?;
        std::fs::rename(&new, path).map_err(Error::io("replace", path))
    }

    /// Reads the file; empty if it is missing or malformed.
    pub fn read(path: &Path) -> Self {
        Self::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    /// Parses the content of such a file; empty if it is malformed.
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Whether the process no longer needs its peers ([`Progress::DONE`]).
    pub fn is_done(&self) -> bool {
        self.state.as_deref() == Some(Self::DONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_unknown_fields_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("worker.0.json");
        assert_eq!(Progress::read(&path), Progress::default());
        let (state, samples, samples_per_second) = (Some("training".into()), Some(7), Some(1.5));
        let progress = Progress { state, samples, samples_per_second, ..Progress::default() };
        progress.write(&path).unwrap();
        let line = "{\"state\":\"training\",\"samples\":7,\"samples_per_second\":1.5}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), line);
        assert_eq!(Progress::read(&path), progress);
        std::fs::write(&path, "{\"samples\": 8, \"mood\": \"good\"}").unwrap();
        assert_eq!(Progress::read(&path).samples, Some(8));
        std::fs::write(&path, "half a li").unwrap();
        assert_eq!(Progress::read(&path), Progress::default());
    }

    #[test]
    fn servers_report_checkpoints_steps_and_silent_peers() {
        let silent = vec![Silent { role: Role::Worker, rank: 1, seconds: 4.5 }];
        let (checkpoint, checkpoint_step, step) = (Some("model".into()), Some(120), Some(155));
        let progress = Progress { checkpoint, checkpoint_step, step, silent, ..Progress::default() };
        let line = "{\"checkpoint\":\"model\",\"checkpoint_step\":120,\"step\":155,\
                    \"silent\":[{\"role\":\"worker\",\"rank\":1,\"seconds\":4.5}]}";
        assert_eq!(serde_json::to_string(&progress).unwrap(), line);
        assert_eq!(Progress::parse(line), progress);
    }
}
