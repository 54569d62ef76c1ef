//! The configuration of a dataset: what the user chose, and the same checked.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use openfleet_core::Schema;

use super::error::{Error, Result};
use super::format::{Format, ResolvedFormat};
use super::record_layout::RecordLayout;

/// Which rows to read, from which files, and how many per batch.
#[derive(Debug, Clone)]
pub struct DatasetConfig {
    pub(crate) schema: Schema,
    pub(crate) format: Format,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) batch_size: usize,
    pub(crate) thread_num: usize,
    pub(crate) drop_last: bool,
    pub(crate) pipe_command: Option<String>,
    pub(crate) on_bad_line: OnBadLine,
    pub(crate) clicks: Option<String>,
}

/// What to do with a malformed line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnBadLine {
    /// End the pass with an error.
    #[default]
    Stop,
    /// Skip the line and count it.
    Skip,
}

impl DatasetConfig {
    /// Reads these fields from files in this format. Defaults: batch size 1, one thread, no files.
    pub fn new(schema: Schema, format: Format) -> Self {
        DatasetConfig {
            schema,
            format,
            files: Vec::new(),
            batch_size: 1,
            thread_num: 1,
            drop_last: false,
            pipe_command: None,
            on_bad_line: OnBadLine::Stop,
            clicks: None,
        }
    }

    /// The field, one integer per row, that says whether there was a click. A line where it is neither 0 nor 1 is malformed.
    #[must_use]
    pub fn clicks(mut self, field: impl Into<String>) -> Self {
        self.clicks = Some(field.into());
        self
    }

    /// The files in the order in which they are read: plain text, gzip or zstd.
    #[must_use]
    pub fn files<P: Into<PathBuf>>(mut self, files: impl IntoIterator<Item = P>) -> Self {
        self.files = files.into_iter().map(Into::into).collect();
        self
    }

    /// Rows per batch; at least 1.
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = batch_size;
        self
    }

    /// Training threads, at least 1. There are at most as many reader threads, because one thread reads a whole file.
    #[must_use]
    pub fn thread_num(mut self, thread_num: usize) -> Self {
        self.thread_num = thread_num;
        self
    }

    /// Skip the rows at the end of a pass that do not fill a batch.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// A shell command that reads each (decompressed) file on its standard input and writes the lines to parse.
    #[must_use]
    pub fn pipe_command(mut self, command: impl Into<String>) -> Self {
        self.pipe_command = Some(command.into());
        self
    }

    /// What to do with a malformed line.
    #[must_use]
    pub fn on_bad_line(mut self, on_bad_line: OnBadLine) -> Self {
        self.on_bad_line = on_bad_line;
        self
    }

    /// Checks everything that can be checked without opening a file.
    pub(crate) fn resolve(self) -> Result<ReadPlan> {
        for (name, value) in [("batch_size", self.batch_size), ("thread_num", self.thread_num)] {
            if value == 0 {
                return Err(Error::BadSetting { name, expected: "at least 1", got: value.to_string() });
            }
        }
        let format = self.format.resolve(&self.schema)?;
        let layout = Arc::new(RecordLayout::new(&self.schema, format.order()));
        // PaddlePaddle's default is `cat`; starting a process for it would change nothing.
        let pipe_command = self.pipe_command.filter(|command| !matches!(command.trim(), "" | "cat"));
        if let (ResolvedFormat::Columns(_), Some(command)) = (&format, &pipe_command) {
            let expected = "none, because Parquet and Arrow files are not text";
            return Err(Error::BadSetting { name: "pipe_command", expected, got: format!("`{command}`") });
        }
        let clicks = match self.clicks {
            Some(field) => {
                let column = self.schema.fields().iter().position(|known| known.name == field);
                let Some(column) = column else {
                    return Err(Error::BadSetting { name: "clicks", expected: "a field of the schema", got: field });
                };
                layout.key_offset(column).map(|offset| (field, offset))
            }
            None => None,
        };
        Ok(ReadPlan {
            clicks,
            schema: self.schema,
            layout,
            format,
            batch_size: self.batch_size,
            thread_num: self.thread_num,
            drop_last: self.drop_last,
            pipe_command,
            on_bad_line: self.on_bad_line,
        })
    }
}

/// A checked [`DatasetConfig`] without its files; reader threads share it.
pub(crate) struct ReadPlan {
    pub(crate) schema: Schema,
    pub(crate) layout: Arc<RecordLayout>,
    pub(crate) format: ResolvedFormat,
    pub(crate) batch_size: usize,
    pub(crate) thread_num: usize,
    pub(crate) drop_last: bool,
    pub(crate) pipe_command: Option<String>,
    pub(crate) on_bad_line: OnBadLine,
    /// The field of clicks, and its index among the ids of a row.
    pub(crate) clicks: Option<(String, usize)>,
}

/// The size of all files together in bytes. Fails on the first file that cannot be read.
pub(crate) fn check_files(files: &[PathBuf]) -> Result<u64> {
    files.iter().try_fold(0, |bytes, file| Ok(bytes + file_bytes(file)?))
}

fn file_bytes(file: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(file).map_err(|error| Error::io("open", file, error))?;
    if metadata.is_dir() {
        return Err(Error::io("open", file, std::io::ErrorKind::IsADirectory.into()));
    }
    Ok(metadata.len())
}
