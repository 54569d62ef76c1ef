//! Reads one file into rows; every reader thread of both datasets runs this.
//!
//! It knows the line number, so this is where a parser's error gets its file and line, or is counted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::config::{OnBadLine, ReadPlan};
use super::error::{Error, Result};
use super::format::{LineError, LineParser, Parsed};
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
    let mut source = Source::open(file, read_plan.pipe_command.as_deref(), &counters.bytes, stop)?;
    let mut lines = LineReader {
        parser: read_plan.format.parser(),
        file,
        line: 0,
        blank_lines: 0,
        on_bad_line: read_plan.on_bad_line,
        clicks: read_plan.clicks.as_ref().map(|(field, offset)| (field.as_str(), *offset)),
        skipped_lines: &counters.skipped_lines,
    };
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
    file: &'a Path,
    /// The line that was read last, from 1.
    line: u64,
    /// The number of blank lines directly before the next line. They are ignored at the end of a file and malformed anywhere
    /// else.
    blank_lines: u64,
    on_bad_line: OnBadLine,
    clicks: Option<(&'a str, usize)>,
    skipped_lines: &'a AtomicU64,
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
                self.reject_line(line, LineError::whole_line("a row", "an empty line"))?;
            }
            self.blank_lines = 0;
        }
        match self.parser.parse(line, records) {
            Ok(Parsed::Row) => match self.clicks.map(|(field, offset)| (field, records.written_key(offset))) {
                Some((field, click)) if click > 1 => {
                    records.roll_back_row();
                    self.reject_line(self.line, LineError::new(field, "0 or 1", (click as i64).to_string()))?;
                }
                _ => records.commit_row(),
            },
            Ok(Parsed::NotARow) => {}
            Err(error) => {
                records.roll_back_row();
                self.reject_line(self.line, error)?;
            }
        }
        Ok(())
    }

    #[cold]
    fn reject_line(&self, line: u64, error: LineError) -> Result<()> {
        if self.on_bad_line == OnBadLine::Skip && !error.fatal {
            self.skipped_lines.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let LineError { slot, expected, got, .. } = error;
        Err(Error::BadLine { file: self.file.to_owned(), line, slot, expected, got })
    }
}
