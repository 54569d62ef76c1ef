//! Generated data with known answers: click logs and text.
//!
//! A model can be compared with what is achievable: [`criteo`] knows the AUC of the true click probability, [`words`] the true
//! similarity of two words. Both are functions of a seed. Every row and every sentence is computed from its own index alone, with
//! integer arithmetic and the four operations of IEEE floats (see `portable`), so the bytes are the same on any machine, in any
//! order and on any number of threads.
//!
//! Nothing here reads data back or trains on it. Summaries are returned as values, and the caller decides how to print them.

pub mod criteo;
mod portable;
mod random;
pub mod words;

pub use criteo::{CriteoFormat, CriteoGenerator, CriteoRow, CriteoSpec, CriteoSummary, Split, SplitSummary};
pub use words::{WordsGenerator, WordsSpec, WordsSummary};

use std::fs::{File, create_dir_all};
use std::io::Write;
use std::path::{Path, PathBuf};

use openfleet_core::{Hint, Hinted};

/// `Result` with this module's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why data could not be generated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A number in the specification is out of range.
    #[error("expected `{what}` from {minimum} to {maximum}, got {got}")]
    Count {
        /// The field of the specification.
        what: &'static str,
        /// The smallest allowed number.
        minimum: u64,
        /// The largest allowed number.
        maximum: u64,
        /// The actual number.
        got: u64,
    },
    /// A fraction in the specification is out of range.
    #[error("expected `{what}` from {minimum} to {maximum}, got {got}")]
    Share {
        /// The field of the specification.
        what: &'static str,
        /// The lowest allowed value.
        minimum: f64,
        /// The highest allowed value.
        maximum: f64,
        /// The actual value.
        got: f64,
    },
    /// The specification has no format.
    #[error("expected at least one format in `formats`, got none")]
    NoFormat,
    /// The directory has parts of an earlier run that this run would not replace, so that readers would mix both.
    #[error("expected no parts of earlier data, got `{}`", path.display())]
    Leftover {
        /// The existing file.
        path: PathBuf,
    },
    /// The summary could not be computed, which is a bug in OpenFleet.
    #[error(transparent)]
    Metric(#[from] openfleet_core::Error),
    /// The file system reported an error.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// The failed action, as a verb.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl Hinted for Error {
    fn hint(&self) -> Option<Hint> {
        match self {
            Error::Count { what, minimum, got, .. } if got < minimum => Some(match *what {
                "ids" => format!("26 slots with at least 4 ids each need {minimum}").into(),
                "test_rows" => "the Bayes AUC is measured on the test rows: generate some, for example 100000".into(),
                "vocabulary" => "every topic needs a few words of its own: use more words or fewer topics".into(),
                _ => format!("use at least {minimum}").into(),
            }),
            Error::Count { what: "ids", .. } => Some("Criteo's text holds an id as 8 hexadecimal digits".into()),
            Error::Count { maximum, .. } => Some(format!("use at most {maximum}").into()),
            Error::Share { what: "auc", .. } => {
                Some("0.5 is random guessing, 1 is perfect; 0.8 is like real click logs".into())
            }
            Error::Share { .. } => Some("use a fraction, 0.25 for a quarter".into()),
            Error::NoFormat => Some("choose `MultiSlot`, `Tsv` or both".into()),
            Error::Leftover { .. } => Some("choose another directory, or remove the old parts first".into()),
            Error::Metric(error) => error.hint(),
            Error::Io { .. } => None,
        }
    }
}

fn count_from(what: &'static str, minimum: u64, maximum: u64, got: u64) -> Result<()> {
    if (minimum..=maximum).contains(&got) { Ok(()) } else { Err(Error::Count { what, minimum, maximum, got }) }
}

fn share_from(what: &'static str, minimum: f64, maximum: f64, got: f64) -> Result<()> {
    if (minimum..=maximum).contains(&got) { Ok(()) } else { Err(Error::Share { what, minimum, maximum, got }) }
}

fn make_directory(path: &Path) -> Result<()> {
    create_dir_all(path).map_err(|source| Error::Io { action: "create the directory", path: path.to_owned(), source })
}

/// A file being written; its errors name it. Lines are collected in `text` and written in large pieces.
struct TextFile {
    path: PathBuf,
    file: File,
    text: Vec<u8>,
    bytes: u64,
}

impl TextFile {
    /// How many bytes are collected before they are written.
    const PIECE: usize = 1 << 18;

    fn create(path: PathBuf) -> Result<Self> {
        match File::create(&path) {
            Ok(file) => Ok(TextFile { path, file, text: Vec::with_capacity(Self::PIECE + (1 << 12)), bytes: 0 }),
            Err(source) => Err(Error::Io { action: "create", path, source }),
        }
    }

    /// Call after each line: writes the collected text if there is enough.
    fn line_done(&mut self) -> Result<()> {
        if self.text.len() >= Self::PIECE { self.write_out() } else { Ok(()) }
    }

    /// Writes the rest; returns the file's path and size in bytes.
    fn finish(mut self) -> Result<(PathBuf, u64)> {
        self.write_out()?;
        Ok((self.path, self.bytes))
    }

    fn write_out(&mut self) -> Result<()> {
        self.file.write_all(&self.text).map_err(|source| Error::Io {
            action: "write",
            path: self.path.clone(),
            source,
        })?;
        self.bytes += self.text.len() as u64;
        self.text.clear();
        Ok(())
    }
}

/// Appends a number in decimal; several times as fast as `write!`.
fn push_decimal(text: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    let mut rest = number;
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.extend_from_slice(&digits[first..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use openfleet_core::error::report;

    #[test]
    fn decimals_are_those_of_the_standard_formatter() {
        for number in [0, 7, 10, 99, 100, 1_234_567, u64::MAX] {
            let mut text = Vec::new();
            push_decimal(&mut text, number);
            assert_eq!(String::from_utf8(text).unwrap(), number.to_string());
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named_with_its_cause() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("taken");
        std::fs::write(&file, "").unwrap();
        let text = report(&make_directory(&file.join("train")).unwrap_err());
        assert!(text.contains("cannot create the directory `") && text.contains("taken"), "{text}");
        assert!(text.contains("because: "), "{text}");
    }
}
