//! Writes a file to a bucket: in one request if it is small, else in parts, a few of which are in flight at a time.
//!
//! Nothing is visible before [`Sink::sync`]. A file that is dropped without it leaves nothing behind, unless the process is
//! killed: then the uploaded parts stay in the bucket, invisible, until a lifecycle rule of the bucket removes them.

use std::collections::VecDeque;
use std::io::{self, Write};

use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use openfleet_table::checkpoint::Sink;

use super::Bucket;
use super::driver::Task;

/// Bytes of the first parts. S3 requires at least 5 MiB.
const PART_BYTES: usize = 8 << 20;
/// The part size doubles after this many parts: S3 accepts at most 10,000, which then make half a terabyte.
const PARTS_OF_A_SIZE: usize = 2000;
/// Maximum parts in flight.
const IN_FLIGHT: usize = 3;

pub(super) struct Upload {
    bucket: Bucket,
    key: Path,
    /// Bytes written since the last part.
    buffer: Vec<u8>,
    /// The multipart upload, if there is more than one part.
    parts: Option<Box<dyn MultipartUpload>>,
    begun: usize,
    in_flight: VecDeque<Task<object_store::Result<()>>>,
    is_done: bool,
}

impl Upload {
    pub(super) fn new(bucket: Bucket, key: Path) -> Self {
        Upload { bucket, key, buffer: Vec::new(), parts: None, begun: 0, in_flight: VecDeque::new(), is_done: false }
    }

    fn part_bytes(&self) -> usize {
        PART_BYTES << (self.begun / PARTS_OF_A_SIZE).min(8)
    }

    /// Sends what has been written as a part.
    fn send_part(&mut self) -> io::Result<()> {
        self.land(IN_FLIGHT - 1)?;
        let parts = match &mut self.parts {
            Some(parts) => parts,
            none => {
                none.insert(self.bucket.wait(&self.key, |store, key| async move { store.put_multipart(&key).await })?)
            }
        };
        let part = parts.put_part(PutPayload::from(std::mem::take(&mut self.buffer)));
        self.in_flight.push_back(self.bucket.driver.start(part));
        self.begun += 1;
        Ok(())
    }

    /// Waits until at most `left` parts are in flight.
    fn land(&mut self, left: usize) -> io::Result<()> {
        while self.in_flight.len() > left
            && let Some(part) = self.in_flight.pop_front()
        {
            self.bucket.take(&self.key, part)?;
        }
        Ok(())
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_done {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the object is complete and cannot be appended to"));
        }
        if self.buffer.len() >= self.part_bytes() {
            self.send_part()?;
        }
        let now = bytes.len().min(self.part_bytes() - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..now]);
        Ok(now)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Upload {
    fn sync(&mut self) -> io::Result<()> {
        if self.is_done {
            return Ok(());
        }
        if self.parts.is_some() {
            self.send_part()?;
            self.land(0)?;
        }
        let (parts, buffer) = (self.parts.take(), std::mem::take(&mut self.buffer));
        self.bucket.wait(&self.key, |store, key| async move {
            match parts {
                None => store.put(&key, PutPayload::from(buffer)).await,
                Some(mut parts) => match parts.complete().await {
                    Err(error) => {
                        let _ = parts.abort().await;
                        Err(error)
                    }
                    completed => completed,
                },
            }
        })?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(mut parts) = self.parts.take() {
            // A part that arrives after the upload was aborted would stay in the bucket.
            while let Some(part) = self.in_flight.pop_front() {
                let _ = part.wait();
            }
            let _ = self.bucket.driver.start(async move { parts.abort().await }).wait();
        }
    }
}
