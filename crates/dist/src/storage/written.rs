//! A file that is written front to back, and written to disk meanwhile.
//!
//! Otherwise formatting rows and writing to the disk would wait for each other: every few mebibytes the kernel is asked to
//! write back what it has, so little is left to do for the fsync at the end.

use std::fs::File;
use std::io::{self, Write};

use openfleet_table::checkpoint::Sink;

/// A file that is being written.
pub(super) struct Written {
    file: File,
    written: u64,
    /// Up to which byte the kernel was asked to write back.
    handed_over: u64,
}

/// Bytes between two such requests.
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

/// Asks the kernel to start writing back a range of a file, without waiting. This is only advice: if it is ignored, the fsync
/// at the end does all the work.
#[cfg(target_os = "linux")]
fn hand_over(file: &File, from: u64, to: u64) {
    use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
    let (Ok(from), Ok(length)) = (i64::try_from(from), i64::try_from(to - from)) else { return };
    let _ = posix_fadvise(file, from, length, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
}

#[cfg(not(target_os = "linux"))]
fn hand_over(_: &File, _: u64, _: u64) {}
