//! The output of a process: every byte goes to its log file, whole lines with a prefix go to the screen, and the last lines are
//! kept for the case that it fails.
//!
//! One thread per process reads until every holder of the pipe has closed it, so no output is lost. The file gets bytes as they
//! come; the screen gets whole lines, so that the output of processes does not mix within a line.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{PipeReader, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::screen::{ProcessName, Screen};
use crate::error::{Error, Result};

/// How many last lines are shown of a process that failed.
pub(crate) const LAST_LINES: usize = 30;
/// A longer line is printed in pieces.
const LONGEST_LINE: usize = 64 * 1024;

/// The last lines that a process has printed; shared with the thread that reads them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    pub(crate) fn get(&self) -> Vec<String> {
        self.lock().iter().cloned().collect()
    }

    fn push(&self, line: &str) {
        let mut lines = self.lock();
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a process's log to append to it, after emptying it if it is the log of an older job.
pub(crate) fn open(path: &Path, is_old: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    if is_old {
        // `truncate` cannot be combined with `append`.
        File::create(path).map_err(Error::io("write the log", path))?;
    }
    options.open(path).map_err(Error::io("write the log", path))
}

/// Copies output until its end. Runs on its own thread.
pub(crate) fn copy(mut from: PipeReader, mut file: File, screen: &Screen, process_name: ProcessName, last: &LastLines) {
    let mut buffer = vec![0; 16 * 1024];
    let mut lines = Lines::default();
    let mut is_written = true;
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        if let Err(error) = file.write_all(&buffer[..count])
            && std::mem::replace(&mut is_written, false)
        {
            // The job continues without its log; the screen still shows the output.
            screen.remark(&format!("warning: cannot write the log of {process_name}: {error}"));
        }
        lines.take(&buffer[..count], |line| {
            last.push(line);
            screen.line(process_name, line);
        });
    }
    lines.finish(|line| {
        last.push(line);
        screen.line(process_name, line);
    });
}

/// Splits bytes into lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    pub(crate) fn take(&mut self, mut bytes: &[u8], mut each: impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(&bytes[..end]);
            self.say(&mut each);
            bytes = &bytes[end + 1..];
        }
        self.begun.extend_from_slice(bytes);
        if self.begun.len() > LONGEST_LINE {
            self.say(&mut each);
        }
    }

    /// Also passes on a last line without a line end.
    pub(crate) fn finish(mut self, mut each: impl FnMut(&str)) {
        if !self.begun.is_empty() {
            self.say(&mut each);
        }
    }

    fn say(&mut self, each: &mut impl FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.begun);
        let text = text.trim_end_matches('\r');
        // A progress bar overwrites itself with carriage returns: keep what is visible in the end.
        each(text.rsplit('\r').next().unwrap_or(text));
        self.begun.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut all, mut lines) = (Vec::new(), Lines::default());
        for piece in pieces {
            lines.take(piece, |line| all.push(line.to_owned()));
        }
        lines.finish(|line| all.push(line.to_owned()));
        all
    }

    #[test]
    fn lines_come_out_whole_whatever_the_pieces() {
        assert_eq!(lines(&[b"one\ntw", b"o\n\nth", b"ree"]), ["one", "two", "", "three"]);
        assert_eq!(lines(&[b"\n"]), [""]);
        assert_eq!(lines(&[b""]), Vec::<String>::new());
        // Windows line ends; a bar that is drawn three times; bytes that are not UTF-8.
        assert_eq!(lines(&[b"dos\r\n", b" 1%\r 50%\r100%\n", b"\xff\n"]), ["dos", "100%", "\u{fffd}"]);
        // A character cut in two.
        assert_eq!(lines(&["é\n".as_bytes().split_at(1).0, "é\n".as_bytes().split_at(1).1]), ["é"]);
    }

    #[test]
    fn the_last_lines_are_kept() {
        let last = LastLines::default();
        (0..100).for_each(|number| last.push(&number.to_string()));
        let lines = last.get();
        assert_eq!((lines.len(), lines[0].as_str(), lines[29].as_str()), (30, "70", "99"));
    }
}
