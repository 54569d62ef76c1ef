//! A directory with small data, and the program run on it.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A directory that is removed with the test.
pub(crate) struct Workspace {
    directory: tempfile::TempDir,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Workspace { directory: tempfile::tempdir().unwrap() }
    }

    /// Click data with this many training rows in `clicks`, in two parts and both formats.
    pub(crate) fn with_clicks(rows: usize) -> Self {
        let workspace = Workspace::new();
        let rows = rows.to_string();
        let ran = workspace.run(&[
            "gen",
            "criteo",
            "--rows",
            &rows,
            "--test-rows",
            "1000",
            "--ids",
            "500",
            "--parts",
            "2",
            "--auc",
            "0.9",
            "--out",
            &workspace.at("clicks"),
        ]);
        ran.succeeded();
        workspace
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.at(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran { output: self.command(arguments).output().unwrap() }
    }

    /// The program, not yet started.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_openfleet"));
        command.current_dir(self.directory.path()).args(arguments);
        command
    }

    /// Runs `train` with a small network and two threads on the click data; later options override these.
    pub(crate) fn train(&self, model: &str, options: &[&str]) -> Value {
        let files = ["--train", "clicks/train/*.txt", "--test", "clicks/test/*.txt"];
        let arguments = [["train", "--model", model, "--json"].as_slice(), &files, SMALL, options].concat();
        self.run(&arguments).json()
    }
}

/// Small enough for an unoptimised build, with a learning rate that has an effect in a few batches.
pub(crate) const SMALL: &[&str] = &["--batch-size", "64", "--hidden", "16,8", "--dim", "4", "--learning-rate", "0.01"];

/// The result of a run.
pub(crate) struct Ran {
    pub output: Output,
}

impl Ran {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(self.output.stderr.clone()).unwrap()
    }

    pub(crate) fn succeeded(&self) -> &Self {
        assert!(self.output.status.success(), "{:?}\n{}", self.output.status, self.stderr());
        self
    }

    /// The object on the last line of standard output.
    pub(crate) fn json(&self) -> Value {
        self.succeeded();
        last_json(&self.stdout())
    }

    /// Standard error of a run that ended with this exit code.
    pub(crate) fn failed(&self, code: i32) -> String {
        assert_eq!(self.output.status.code(), Some(code), "{}", self.stderr());
        self.stderr()
    }
}

pub(crate) fn last_json(stdout: &str) -> Value {
    let last = stdout.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

pub(crate) fn number(summary: &Value, name: &str) -> f64 {
    summary[name].as_f64().unwrap_or_else(|| panic!("`{name}` is no number in {summary}"))
}
