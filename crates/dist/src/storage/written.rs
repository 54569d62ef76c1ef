//! A file that is written front to back, with the disk at work meanwhile.
//!
//! The disk would otherwise wait for whoever formats rows, and he for it: what is written is handed over every few
//! mebibytes, so that the sync at the end finds little left to do.

use std::fs::File;
use std::io::{self, Write};

use openfleet_table::checkpoint::Sink;

/// A file being written.
pub(super) struct Written {
    file: File,
    written: u64,
    /// How much of it the disk was asked to take.
    handed_over: u64,
}

/// Bytes handed to the disk at a time.
const HANDED_OVER: u64 = 8 << 20;

impl Written {
    pub(super) fn new(file: File) -> Self {
        Written { file, written: 0, handed_over: 0 }
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.written += count as u64;
        if self.written - self.handed_over >= HANDED_OVER {
            hand_over(&self.file, self.handed_over, self.written);
            self.handed_over = self.written;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Sink for Written {
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Lets the disk begin with some bytes of a file, and waits for nothing. Just advice: where it is not taken, the sync at the
/// end does it all.
#[cfg(target_os = "linux")]
fn hand_over(file: &File, from: u64, to: u64) {
    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
    let (Ok(from), Ok(length)) = (i64::try_from(from), i64::try_from(to - from)) else { return };
    let _ = posix_fadvise(file, from, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}

#[cfg(not(target_os = "linux"))]
fn hand_over(_: &File, _: u64, _: u64) {}
