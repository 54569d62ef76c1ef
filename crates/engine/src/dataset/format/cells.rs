//! Splits a line into cells at its separators, with quotes and blanks.
//!
//! A line without quotes is split in place; any other is unquoted into a buffer that is reused for each line. `csv.rs` interprets
//! the cells.

use super::columns::ColumnsSpec;
use super::{LineError, quote};
use crate::dataset::error::Result;

/// The positions of a line's cells; the memory is reused for each line.
pub(super) struct Cells<'a> {
    pub(super) separator: u8,
    spec: &'a ColumnsSpec,
    pub(super) ranges: Vec<(u32, u32)>,
    /// The line without quotes, if it had some: `ranges` then refer to this.
    unquoted: Vec<u8>,
}

impl<'s> Cells<'s> {
    pub(super) fn new(spec: &'s ColumnsSpec) -> Self {
        Cells { separator: spec.separator as u8, spec, ranges: Vec::new(), unquoted: Vec::new() }
    }

    /// Finds the cells of a line and stores them in `ranges`.
    pub(super) fn split(&mut self, line: &[u8]) -> Result<(), LineError> {
        self.ranges.clear();
        self.unquoted.clear();
        if self.spec.quotes && memchr::memchr(b'"', line).is_some() {
            return self.split_quoted(line);
        }
        if self.separator == b' ' {
            self.split_at_blanks(line);
            return Ok(());
        }
        let mut start = 0;
        for end in memchr::memchr_iter(self.separator, line) {
            self.push(line, start, end);
            start = end + 1;
        }
        self.push(line, start, line.len());
        Ok(())
    }

    fn split_at_blanks(&mut self, line: &[u8]) {
        let mut start = None;
        for (at, byte) in line.iter().enumerate() {
            match (byte.is_ascii_whitespace(), start) {
                (false, None) => start = Some(at),
                (true, Some(begun)) => {
                    self.ranges.push((begun as u32, at as u32));
                    start = None;
                }
                _ => {}
            }
        }
        if let Some(begun) = start {
            self.ranges.push((begun as u32, line.len() as u32));
        }
    }

    #[inline]
    fn push(&mut self, line: &[u8], start: usize, end: usize) {
        let (mut start, mut end) = (start, end);
        if self.spec.trim {
            while start < end && line[start].is_ascii_whitespace() {
                start += 1;
            }
            while start < end && line[end - 1].is_ascii_whitespace() {
                end -= 1;
            }
        }
        self.ranges.push((start as u32, end as u32));
    }

    /// Blanks within quotes stay; blanks around the quotes are removed by `trim`. If runs of blanks separate cells, an empty cell
    /// has to be quoted.
    fn split_quoted(&mut self, line: &[u8]) -> Result<(), LineError> {
        let blank_separated = self.separator == b' ';
        let mut at = 0;
        loop {
            let quote_at = at + line[at..].iter().take_while(|&&byte| byte == b' ').count();
            let skip = self.spec.trim || blank_separated;
            if line.get(if skip { quote_at } else { at }) == Some(&b'"') {
                at = self.unquote(line, if skip { quote_at } else { at })?;
            } else {
                if blank_separated {
                    at = quote_at;
                }
                let end = memchr::memchr(self.separator, &line[at..]).map_or(line.len(), |found| at + found);
                let cell = if self.spec.trim { line[at..end].trim_ascii() } else { &line[at..end] };
                let start = self.unquoted.len();
                self.unquoted.extend_from_slice(cell);
                self.ranges.push((start as u32, self.unquoted.len() as u32));
                at = end;
            }
            let after = at + line[at..].iter().take_while(|&&byte| byte == b' ').count();
            if after == line.len() && (blank_separated || at == after || self.spec.trim) {
                return Ok(());
            }
            let separator_at = if blank_separated || !self.spec.trim { at } else { after };
            if line.get(separator_at) != Some(&self.separator) {
                let expected = format!("{} after a quoted cell", quote(&[self.separator]));
                return Err(LineError::whole_line(expected, quote(&line[separator_at..])));
            }
            at = separator_at + 1;
        }
    }

    /// Copies the quoted cell that starts at `start`; returns where it ends.
    fn unquote(&mut self, line: &[u8], start: usize) -> Result<usize, LineError> {
        let cell = self.unquoted.len();
        let mut at = start + 1;
        loop {
            let Some(found) = memchr::memchr(b'"', &line[at..]) else {
                return Err(LineError::whole_line("a closing `\"` on the same line", quote(&line[start..])));
            };
            self.unquoted.extend_from_slice(&line[at..at + found]);
            at += found + 1;
            if line.get(at) != Some(&b'"') {
                self.ranges.push((cell as u32, self.unquoted.len() as u32));
                return Ok(at);
            }
            self.unquoted.push(b'"');
            at += 1;
        }
    }

    /// The text that the ranges refer to.
    pub(super) fn text<'a>(&'a self, line: &'a [u8]) -> &'a [u8] {
        if self.spec.quotes && memchr::memchr(b'"', line).is_some() { &self.unquoted } else { line }
    }
}
