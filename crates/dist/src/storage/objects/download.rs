//! Reads a file from a bucket, front to back: the next piece is downloaded while one is being used.
//!
//! Pieces are requested one by one instead of in one long response. A slow reader then holds no connection open, and a broken
//! connection costs one piece.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::Bucket;
use super::driver::Task;

/// Bytes per request.
const PIECE_BYTES: u64 = 8 << 20;

pub(super) struct Download {
    bucket: Bucket,
    key: Path,
    size: u64,
    /// Up to which byte it has been requested.
    asked: u64,
    coming: Option<Task<object_store::Result<Bytes>>>,
    piece: Bytes,
}

impl Download {
    /// Starts at byte `from`.
    pub(super) fn new(bucket: Bucket, key: Path, size: u64, from: u64) -> Self {
        let mut download = Download { bucket, key, size, asked: from.min(size), coming: None, piece: Bytes::new() };
        download.ask();
        download
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    fn ask(&mut self) {
        let range = self.asked..self.size.min(self.asked + PIECE_BYTES);
        if !range.is_empty() {
            self.asked = range.end;
            let (store, key) = (self.bucket.store.clone(), self.key.clone());
            self.coming = Some(self.bucket.driver.start(async move { store.get_range(&key, range).await }));
        }
    }
}

impl Read for Download {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let Some(coming) = self.coming.take() else { return Ok(0) };
            self.piece = self.bucket.take(&self.key, coming)?;
            self.ask();
        }
        let now = room.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut room[..now]);
        Ok(now)
    }
}
