//! Reads one file as pieces of whole lines: opens it, decompresses it, pipes it through a command.
//!
//! The first bytes decide the compression, so a misnamed file can be read. The extension decides only if the bytes do not, so
//! that a damaged `.gz` is an error and not garbage. This module does not parse lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{Error, Result};
use super::pipe::{Pipe, StopSignal};

/// Text is read in pieces of this size, which fit the second-level cache while they are parsed.
const PIECE: usize = 256 << 10;

/// The maximum length of a line. Without a limit, a binary file would be read into memory whole in search of a line end.
const LONGEST_LINE: usize = 256 << 20;

/// The text of one file.
pub(crate) struct Source {
    file: PathBuf,
    input: Input,
    buffer: Vec<u8>,
    /// `buffer[..returned]` was the last piece; `buffer[returned..filled]` is the start of the next.
    returned: usize,
    filled: usize,
    ended: bool,
    lines_returned: u64,
}

enum Input {
    Direct(Box<dyn Read + Send>),
    Piped(Pipe),
}

impl Source {
    /// Opens a file. The bytes read from disk are added to `bytes`.
    pub(crate) fn open(
        file: &Path,
        pipe_command: Option<&str>,
        bytes: &Arc<AtomicU64>,
        stop: &Arc<StopSignal>,
    ) -> Result<Self> {
        let opened = File::open(file).map_err(|error| Error::io("open", file, error))?;
        let text = decompressed(file, CountingReader { file: opened, bytes: bytes.clone() })
            .map_err(|error| Error::io("read", file, error))?;
        let input = match pipe_command {
            Some(command) => Input::Piped(Pipe::start(command, file, text, stop)?),
            None => Input::Direct(text),
        };
        Ok(Source::new(file, input))
    }

    fn new(file: &Path, input: Input) -> Self {
        let file = file.to_owned();
        Source { file, input, buffer: vec![0; PIECE], returned: 0, filled: 0, ended: false, lines_returned: 0 }
    }

    /// The next whole lines; only the last line of a file may lack its line ending. Returns `None` at the end of the file; a pipe
    /// command has then succeeded.
    pub(crate) fn next_lines(&mut self) -> Result<Option<&[u8]>> {
        self.buffer.copy_within(self.returned..self.filled, 0);
        self.filled -= self.returned;
        self.returned = 0;
        let mut searched = 0;
        while !self.ended {
            if self.filled == self.buffer.len() {
                self.grow()?;
            }
            let length = self.read()?;
            self.filled += length;
            if length == 0 {
                self.ended = true;
                if let Input::Piped(pipe) = &mut self.input {
                    pipe.finish()?;
                }
            } else if let Some(last) = memchr::memrchr(b'\n', &self.buffer[searched..self.filled]) {
                self.returned = searched + last + 1;
                return Ok(Some(&self.buffer[..self.returned]));
            }
            searched = self.filled;
        }
        self.returned = self.filled;
        Ok((self.returned > 0).then(|| &self.buffer[..self.returned]))
    }

    fn read(&mut self) -> Result<usize> {
        let free = &mut self.buffer[self.filled..];
        loop {
            let result = match &mut self.input {
                Input::Direct(reader) => reader.read(free),
                Input::Piped(pipe) => pipe.read(free),
            };
            match result {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                result => return result.map_err(|error| Error::io("read", &self.file, error)),
            }
        }
    }

    /// Grows the buffer for a line that does not fit.
    fn grow(&mut self) -> Result<()> {
        if self.buffer.len() >= LONGEST_LINE {
            let line = self.lines_returned + 1;
            return Err(Error::LongLine { file: self.file.clone(), line, limit: LONGEST_LINE });
        }
        self.buffer.resize(self.buffer.len() * 2, 0);
        Ok(())
    }

    /// Sets the number of lines in the pieces so far, for error messages.
    pub(crate) fn set_lines_returned(&mut self, lines: u64) {
        self.lines_returned = lines;
    }
}

/// A file that counts the bytes read from it.
struct CountingReader {
    file: File,
    bytes: Arc<AtomicU64>,
}

impl Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = self.file.read(buffer)?;
        self.bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}

fn decompressed(file: &Path, input: impl Read + Send + 'static) -> std::io::Result<Box<dyn Read + Send>> {
    let mut input = BufReader::with_capacity(64 << 10, input);
    let start = input.fill_buf()?;
    let extension = file.extension().unwrap_or_default();
    let nothing_to_read = start.is_empty();
    if start.starts_with(&[0x1f, 0x8b]) || (extension == "gz" && !nothing_to_read) {
        // Concatenated gzip members are one file, as `cat a.gz b.gz` writes it.
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(input)));
    }
    if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || (extension == "zst" && !nothing_to_read) {
        return Ok(Box::new(zstd::stream::read::Decoder::with_buffer(input)?));
    }
    Ok(Box::new(input))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a few bytes at a time, like a slow pipe.
    struct SlowReader(Vec<u8>, usize);

    impl Read for SlowReader {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0.drain(..length);
            Ok(length)
        }
    }

    fn pieces(text: &[u8], step: usize) -> Vec<Vec<u8>> {
        let mut source = Source::new(Path::new("file"), Input::Direct(Box::new(SlowReader(text.to_vec(), step))));
        let mut pieces = Vec::new();
        while let Some(piece) = source.next_lines().unwrap() {
            pieces.push(piece.to_vec());
        }
        pieces
    }

    #[test]
    fn pieces_end_where_lines_end_and_lose_nothing() {
        let text = b"one\n\nthree\r\nfour\nno newline";
        for step in 1..=text.len() {
            let pieces = pieces(text, step);
            assert_eq!(pieces.concat(), text);
            assert!(pieces[..pieces.len() - 1].iter().all(|piece| piece.ends_with(b"\n")), "step {step}");
        }
        assert_eq!(pieces(b"", 1), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_line_longer_than_a_piece_is_read_whole() {
        let mut text = vec![b'x'; 3 * PIECE];
        text.push(b'\n');
        text.extend_from_slice(b"short\n");
        let pieces = pieces(&text, 100_000);
        assert!(pieces[0].len() > 3 * PIECE);
        assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn compression_is_detected_by_the_first_bytes_or_else_the_extension() {
        let packed = zstd::encode_all(&b"text\n"[..], 1).unwrap();
        let mut text = String::new();
        let reader = decompressed(Path::new("misnamed.txt"), std::io::Cursor::new(packed));
        reader.unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text\n");
        let damaged = decompressed(Path::new("damaged.gz"), &b"not gzip"[..]);
        assert!(damaged.unwrap().read_to_string(&mut text).is_err());
        // An empty file is empty, whatever its extension.
        let empty = decompressed(Path::new("empty.gz"), &b""[..]);
        assert_eq!(empty.unwrap().read_to_string(&mut text).unwrap(), 0);
    }
}
