//! The errors between a file list and a batch, with their hints.
//!
//! Every variant can be cloned, because a reader's error is reported to all training threads. Lines are counted from 1, as in an
//! editor.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use openfleet_core::error::did_you_mean;
use openfleet_core::{Hint, Hinted};

/// `Result` with a dataset's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a dataset cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // Files
    /// A file of the list does not exist.
    #[error("data file `{}` does not exist", file.display())]
    MissingFile {
        /// Its path as given.
        file: PathBuf,
    },
    /// The dataset was given no files.
    #[error("the dataset's file list is empty")]
    EmptyFileList,
    /// A pass over the dataset had no rows.
    #[error("the dataset has no rows: {data}, {skipped_lines} bad lines skipped")]
    NoRows {
        /// A description of the data.
        data: String,
        /// Bad lines that were skipped.
        skipped_lines: u64,
    },
    /// No file matches a pattern.
    #[error("no file matches `{pattern}`")]
    NoMatch {
        /// The pattern as given.
        pattern: String,
    },
    /// The operating system or a decompressor reported an error.
    #[error("cannot {action} `{}`", file.display())]
    Io {
        /// The failed action: `open`, `read`.
        action: &'static str,
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// A line is longer than any row can be.
    #[error("`{}` line {line}: expected a line of at most {limit} bytes, got a longer one", file.display())]
    LongLine {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The maximum length of a line in bytes.
        limit: usize,
    },

    // Lines
    /// A line is not a row of this format.
    #[error("`{}` line {line}{}: expected {expected}, got {got}", file.display(), in_slot(slot))]
    BadLine {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The slot (field, column) that is wrong, if it is a single one.
        slot: Option<String>,
        /// What the format requires there, in words.
        expected: String,
        /// What is there: the text in backticks, shortened, or words.
        got: String,
    },

    // Columns
    /// A row of a Parquet or Arrow file has a value that the description does not allow.
    #[error("`{}` row {row}{}: expected {expected}, got {got}", file.display(), in_slot(slot))]
    BadRow {
        /// The file.
        file: PathBuf,
        /// The row, from 1.
        row: u64,
        /// The slot (field, column) that is wrong, if it is a single one.
        slot: Option<String>,
        /// What the description requires there, in words.
        expected: String,
        /// What is there.
        got: String,
    },
    /// A Parquet or Arrow file does not have a column, or has it in another type.
    #[error("`{}`{}: expected {expected}, got {got}", file.display(), in_column(column))]
    BadColumn {
        /// The file.
        file: PathBuf,
        /// The column; empty if the whole file is wrong.
        column: String,
        /// What is required.
        expected: String,
        /// What is there.
        got: String,
    },

    // Pipe commands
    /// A pipe command failed; the rows that it wrote before cannot be trusted.
    #[error("`{command}` on `{}` ended with {status}{}", file.display(), stderr_suffix(stderr))]
    PipeFailed {
        /// The command as given.
        command: String,
        /// The file it was reading.
        file: PathBuf,
        /// `exit code 3`, `signal 9`.
        status: String,
        /// The last lines it wrote to standard error.
        stderr: Vec<String>,
    },

    // Settings
    /// A slot does not exist in the place where it was looked up.
    #[error("slot `{slot}` is not in {place}")]
    UnknownSlot {
        /// The requested slot.
        slot: String,
        /// The place: `the file's slots`, `the program`.
        place: &'static str,
        /// The slots that exist there.
        known: Vec<String>,
    },
    /// The format cannot fill a field of this kind.
    #[error("slot `{slot}`: expected {expected}, got {got}")]
    WrongKind {
        /// The slot.
        slot: String,
        /// What the format can fill.
        expected: String,
        /// What the schema declares.
        got: String,
    },
    /// A column description contradicts itself or the file.
    #[error("bad format description: {what}")]
    BadFormat {
        /// What is wrong, in words.
        what: String,
        /// What to do about it.
        remedy: Option<String>,
    },
    /// A setting is outside its range.
    #[error("`{name}`: expected {expected}, got {got}")]
    BadSetting {
        /// The setting.
        name: &'static str,
        /// The allowed values, in words.
        expected: &'static str,
        /// The actual value.
        got: String,
    },

    // Order of calls
    /// A call was made too early: another call has to come first.
    #[error("cannot {action}: {reason}")]
    WrongState {
        /// The attempted action.
        action: &'static str,
        /// Why it is not possible now.
        reason: &'static str,
        /// What to call first.
        remedy: &'static str,
    },
    /// Another worker's rows have different fields.
    #[error("member {member} of the shuffle sent rows with other fields than this member's")]
    OtherFields {
        /// The rank of the member.
        member: usize,
    },
    /// More rows than an in-memory dataset can index.
    #[error("expected at most {limit} rows in memory, got {rows}")]
    TooManyRows {
        /// The number of rows.
        rows: u64,
        /// The maximum.
        limit: u64,
    },
}

impl Error {
    /// An I/O error on a file; a file that does not exist has its own variant.
    pub(crate) fn io(action: &'static str, file: &Path, source: std::io::Error) -> Self {
        let file = file.to_owned();
        if source.kind() == std::io::ErrorKind::NotFound {
            return Error::MissingFile { file };
        }
        Error::Io { action, file, source: Arc::new(source) }
    }

    /// A Parquet or Arrow file in a build that cannot read them.
    #[cfg(not(feature = "arrow"))]
    pub(crate) fn no_columnar(file: &Path) -> Self {
        let expected = "a build with the Cargo feature `arrow`, which reads Parquet and Arrow files".to_owned();
        Error::BadColumn { file: file.to_owned(), column: String::new(), expected, got: "one without".to_owned() }
    }

    /// A wrong format description; `remedy` may be empty.
    pub(crate) fn bad_format(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into()).filter(|text| !text.is_empty());
        Error::BadFormat { what: what.into(), remedy }
    }
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::MissingFile { .. } => Some("check the path; relative paths start at the working directory".into()),
            Error::EmptyFileList => Some("set the dataset's files".into()),
            Error::NoRows { skipped_lines: 0, .. } => {
                Some("set files that are not empty; with `drop_last` a batch that is not full is skipped".into())
            }
            Error::NoRows { .. } => Some(
                "every line is malformed: check the format and the order of the slots; without skipping, the first error is shown".into(),
            ),
            Error::NoMatch { .. } => Some("check the pattern, and quote it so that the shell does not expand it".into()),
            Error::BadLine { .. } => Some(
                "fix the line or the order of the slots, or skip and count bad lines with `on_bad_line = skip`".into(),
            ),
            Error::BadRow { .. } => {
                Some("correct the data or its description, or skip and count bad rows with `on_bad_line = skip`".into())
            }
            Error::BadColumn { column, .. } => (!column.is_empty())
                .then(|| "correct the description of the columns, or list what is not used in `ignore`".into()),
            Error::LongLine { .. } => Some("check that the file is text in the chosen format".into()),
            Error::PipeFailed { status, .. } if status == "exit code 127" => {
                Some("the shell did not find the command: check its name and `PATH`".into())
            }
            Error::PipeFailed { command, file, .. } => {
                Some(format!("try it by hand: `{command} < {}`", file.display()).into())
            }
            Error::UnknownSlot { slot, known, .. } => Some(did_you_mean(slot, known.iter().map(String::as_str))),
            Error::BadFormat { remedy, .. } => remedy.clone().map(Hint::from),
            Error::WrongState { remedy, .. } => Some((*remedy).into()),
            Error::OtherFields { .. } => {
                Some("give the dataset of every worker the same fields in the same order".into())
            }
            Error::TooManyRows { .. } => Some("use a `QueueDataset`, or give each worker fewer files".into()),
            Error::Io { .. } | Error::WrongKind { .. } | Error::BadSetting { .. } => None,
        }
    }
}

fn in_slot(slot: &Option<String>) -> String {
    slot.as_ref().map(|name| format!(", slot `{name}`")).unwrap_or_default()
}

fn in_column(column: &str) -> String {
    if column.is_empty() { String::new() } else { format!(", column `{column}`") }
}

fn stderr_suffix(stderr: &[String]) -> String {
    if stderr.is_empty() { String::new() } else { format!("; last lines of stderr:\n  {}", stderr.join("\n  ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openfleet_core::error::report;

    #[test]
    fn a_bad_line_names_file_line_slot_expected_and_got() {
        let error = Error::BadLine {
            file: "part-0".into(),
            line: 12,
            slot: Some("C3".into()),
            expected: "an integer".into(),
            got: "`x`".into(),
        };
        assert_eq!(
            report(&error),
            "`part-0` line 12, slot `C3`: expected an integer, got `x`\n\n\
             hint: fix the line or the order of the slots, or skip and count bad lines with `on_bad_line = skip`"
        );
    }

    #[test]
    fn an_unknown_slot_suggests_the_nearest_known_one() {
        let error = Error::UnknownSlot {
            slot: "lable".into(),
            place: "the file's slots",
            known: vec!["label".into(), "C1".into()],
        };
        assert_eq!(report(&error), "slot `lable` is not in the file's slots\n\nhint: did you mean `label`?");
    }

    #[test]
    fn a_missing_file_differs_from_other_io_errors() {
        let absent = Error::io("open", Path::new("x"), std::io::ErrorKind::NotFound.into());
        assert!(matches!(absent, Error::MissingFile { .. }));
        let denied = Error::io("open", Path::new("x"), std::io::ErrorKind::PermissionDenied.into());
        assert_eq!(report(&denied), "cannot open `x`\n  because: permission denied");
    }

    #[test]
    fn a_command_that_was_not_found_says_so() {
        let error = Error::PipeFailed {
            command: "nosuch".into(),
            file: "part-0".into(),
            status: "exit code 127".into(),
            stderr: vec!["sh: 1: nosuch: not found".into()],
        };
        assert_eq!(
            report(&error),
            "`nosuch` on `part-0` ended with exit code 127; last lines of stderr:\n  sh: 1: nosuch: not found\n\n\
             hint: the shell did not find the command: check its name and `PATH`"
        );
    }
}
