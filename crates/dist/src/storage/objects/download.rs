//! A file on its way out of a bucket, front to back: while one piece of it is looked at, the next one comes.
//!
//! Pieces are asked for one by one, rather than in one long answer, so that whoever takes long between two reads holds no
//! connection open, and a connection that breaks costs one piece.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use super::Bucket;
use super::driver::Task;

/// Bytes that are asked for at a time.
const PIECE_BYTES: u64 = 8 << 20;

pub(super) struct Download {
    bucket: Bucket,
    key: Path,
    size: u64,
    /// Up to where it has been asked for.
    asked: u64,
    coming: Option<Task<object_store::Result<Bytes>>>,
    piece: Bytes,
}

impl Download {
    /// From some byte on.
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
