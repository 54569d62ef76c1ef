//! Reads one file into rows; every reader thread of both datasets runs this. Parquet and Arrow files: [`columnar`].
//!
//! It knows the line number, so this is where a parser's error gets its file and line, or is counted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::columnar;
use super::config::{OnBadLine, ReadPlan};
use super::error::{Error, Result};
use super::format::{LineError, LineParser, Parsed, ResolvedFormat};
use super::pipe::StopSignal;
use super::records::Records;
use super::source::Source;

/// What the readers of a pass have read so far.
#[derive(Default)]
pub(crate) struct ReadCounters {
    pub(crate) bytes: Arc<AtomicU64>,
    pub(crate) skipped_lines: AtomicU64,
}

/// Reads `file` to its end. Adds rows to `records` and calls `emit` with them after each piece of text; `emit` may take them, and
/// returns whether to continue.
pub(crate) fn read_file(
    read_plan: &ReadPlan,
    file: &Path,
    counters: &ReadCounters,
    stop: &Arc<StopSignal>,
    records: &mut Records,
    mut emit: impl FnMut(&mut Records) -> bool,
) -> Result<()> {
    let rows = RowChecks {
        file,
        on_bad_line: read_plan.on_bad_line,
        clicks: read_plan.clicks.as_ref().map(|(field, offset)| (field.as_str(), *offset)),
        skipped_lines: &counters.skipped_lines,
        has_lines: matches!(read_plan.format, ResolvedFormat::Lines(_)),
    };
    let format = match &read_plan.format {
        ResolvedFormat::Lines(format) => format,
        ResolvedFormat::Columns(format) => {
            return columnar::read_file(format, &rows, &counters.bytes, records, |records| {
                !stop.is_requested() && emit(records)
            });
        }
    };
    let mut source = Source::open(file, read_plan.pipe_command.as_deref(), &counters.bytes, stop)?;
    let mut lines = LineReader { parser: format.parser(), rows, line: 0, blank_lines: 0 };
    while let Some(text) = source.next_lines()? {
        lines.parse(text, records)?;
        source.set_lines_returned(lines.line);
        if stop.is_requested() || !emit(records) {
            return Ok(());
        }
    }
    Ok(())
}

struct LineReader<'a> {
    parser: Box<dyn LineParser + 'a>,
    rows: RowChecks<'a>,
    /// The line that was read last, from 1.
    line: u64,
    /// The number of blank lines directly before the next line. They are ignored at the end of a file and malformed anywhere
    /// else.
    blank_lines: u64,
}

impl LineReader<'_> {
    fn parse(&mut self, text: &[u8], records: &mut Records) -> Result<()> {
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', text) {
            self.parse_line(&text[start..end], records)?;
            start = end + 1;
        }
        if start < text.len() {
            self.parse_line(&text[start..], records)?;
        }
        Ok(())
    }

    fn parse_line(&mut self, line: &[u8], records: &mut Records) -> Result<()> {
        self.line += 1;
        let mut line = line.strip_suffix(b"\r").unwrap_or(line);
        if self.line == 1 {
            // Some editors write a byte order mark.
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.iter().all(|&byte| byte == b' ') {
            self.blank_lines += 1;
            return Ok(());
        }
        if self.blank_lines > 0 {
            let first = self.line - self.blank_lines;
            for line in first..self.line {
                self.rows.reject(line, LineError::whole_line("a row", "an empty line"))?;
            }
            self.blank_lines = 0;
        }
        match self.parser.parse(line, records) {
            Ok(Parsed::Row) => self.rows.finish(self.line, Ok(()), records),
            Ok(Parsed::NotARow) => Ok(()),
            Err(error) => self.rows.finish(self.line, Err(error), records),
        }
    }
}

/// Commits rows, and rejects those that are malformed.
pub(crate) struct RowChecks<'a> {
    pub(crate) file: &'a Path,
    on_bad_line: OnBadLine,
    /// The field of clicks, and its index among the ids of a row.
    clicks: Option<(&'a str, usize)>,
    skipped_lines: &'a AtomicU64,
    /// Whether the file is text.
    has_lines: bool,
}

impl RowChecks<'_> {
    /// Ends a row that was written, from a line of this number.
    #[inline]
    pub(crate) fn finish(&self, line: u64, written: Result<(), LineError>, records: &mut Records) -> Result<()> {
        let checked = written.and_then(|()| match self.clicks.map(|(field, at)| (field, records.written_key(at))) {
            Some((field, click)) if click > 1 => Err(LineError::new(field, "0 or 1", (click as i64).to_string())),
            _ => Ok(()),
        });
        match checked {
            Ok(()) => records.commit_row(),
            Err(error) => {
                records.roll_back_row();
                self.reject(line, error)?;
            }
        }
        Ok(())
    }

    #[cold]
    fn reject(&self, line: u64, error: LineError) -> Result<()> {
        if self.on_bad_line == OnBadLine::Skip && !error.fatal {
            self.skipped_lines.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let LineError { slot, expected, got, .. } = error;
        if !self.has_lines {
            return Err(Error::BadRow { file: self.file.to_owned(), row: line, slot, expected, got });
        }
        Err(Error::BadLine { file: self.file.to_owned(), line, slot, expected, got })
    }
}
