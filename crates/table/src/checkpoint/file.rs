//! One file of a checkpoint, with a checksum per block.
//!
//! A block is one mebibyte. Its CRC32C tells whether it is intact, and if a single bit was flipped also which one: a CRC is
//! linear, so the difference of two checksums gives the position.

use std::io::Read;

use serde::{Deserialize, Serialize};

use super::storage::{Bytes, Sink, Storage};
use crate::error::{Error, Result};

/// Bytes of every block except a file's last.
pub const BLOCK_BYTES: usize = 1 << 20;

/// A file in the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path within the checkpoint's data directory.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// CRC32C of every block, eight hexadecimal digits each, one after the other.
    pub crc32c: String,
}

/// The position of a flipped bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flip {
    /// Offset of the byte in the file.
    pub offset: u64,
    /// Bit of the byte, 0 is the lowest.
    pub bit: u32,
}

impl FileEntry {
    fn checksum(&self, block: usize) -> Option<u32> {
        u32::from_str_radix(self.crc32c.get(block * 8..block * 8 + 8)?, 16).ok()
    }

    /// Fails if the checksum of a block does not match.
    fn check(&self, path: &str, block: usize, bytes: &[u8]) -> Result<()> {
        let (expected, got) = (self.checksum(block), crc_fast::crc32_iscsi(bytes));
        if expected == Some(got) {
            return Ok(());
        }
        let offset = block as u64 * BLOCK_BYTES as u64;
        let flip = expected.and_then(|expected| find_flip(expected, got, bytes.len()));
        Err(Error::DamagedBlock {
            file: path.to_owned(),
            offset,
            length: bytes.len() as u64,
            flip: flip.map(|flip| Flip { offset: offset + flip.offset, ..flip }),
        })
    }
}

/// Writes a file block by block.
pub(super) struct FileWriter {
    sink: Box<dyn Sink>,
    /// Path within the storage, for messages; the entry has its own.
    path: String,
    entry: FileEntry,
    block: Vec<u8>,
}

impl FileWriter {
    /// A new file `directory/path`.
    pub(super) fn create(storage: &dyn Storage, directory: &str, path: &str) -> Result<Self> {
        let whole = format!("{directory}/{path}");
        let sink = storage.create(&whole).map_err(Error::storage("create", &whole))?;
        let entry = FileEntry { path: path.to_owned(), bytes: 0, crc32c: String::new() };
        Ok(FileWriter { sink, path: whole, entry, block: Vec::with_capacity(BLOCK_BYTES) })
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK_BYTES - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == BLOCK_BYTES {
                self.write_block()?;
            }
        }
        Ok(())
    }

    /// Flushes the file to stable storage (`fsync`), and returns its entry.
    pub(super) fn finish(mut self) -> Result<FileEntry> {
        if !self.block.is_empty() {
            self.write_block()?;
        }
        self.sink.sync().map_err(Error::storage("sync", &self.path))?;
        Ok(self.entry)
    }

    fn write_block(&mut self) -> Result<()> {
        self.sink.write_all(&self.block).map_err(Error::storage("write", &self.path))?;
        self.entry.bytes += self.block.len() as u64;
        self.entry.crc32c += &format!("{:08x}", crc_fast::crc32_iscsi(&self.block));
        self.block.clear();
        Ok(())
    }
}

/// Reads a file of a manifest; all bytes are checked before they are returned.
pub(super) struct FileReader<'a> {
    source: Box<dyn Read + Send>,
    path: String,
    entry: &'a FileEntry,
    /// Number of blocks read so far.
    blocks: usize,
    block: Vec<u8>,
    /// Number of bytes of the current block that were consumed.
    taken: usize,
}

impl<'a> FileReader<'a> {
    pub(super) fn open(storage: &dyn Storage, directory: &str, entry: &'a FileEntry) -> Result<Self> {
        FileReader::open_at(storage, directory, entry, 0)
    }

    /// Opens a file at byte `from`.
    pub(super) fn open_at(storage: &dyn Storage, directory: &str, entry: &'a FileEntry, from: u64) -> Result<Self> {
        let path = locate(storage, directory, entry)?;
        // Blocks are always read completely, because a part of one cannot be checked.
        let blocks = (from / BLOCK_BYTES as u64) as usize;
        let source = storage.open_at(&path, (blocks * BLOCK_BYTES) as u64).map_err(Error::storage("open", &path))?;
        let mut reader = FileReader { source, path, entry, blocks, block: Vec::new(), taken: 0 };
        let before = (from % BLOCK_BYTES as u64) as usize;
        if before > 0 && reader.next_block()? {
            reader.taken = before.min(reader.block.len());
        }
        Ok(reader)
    }

    /// Path of the file, for messages.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Fills `room` with the next bytes.
    pub(super) fn read(&mut self, mut room: &mut [u8]) -> Result<()> {
        while !room.is_empty() {
            if self.taken == self.block.len() && !self.next_block()? {
                return Err(Error::FileLength {
                    file: self.path.clone(),
                    expected: self.entry.bytes.saturating_add(room.len() as u64),
                    got: self.entry.bytes,
                });
            }
            let now = room.len().min(self.block.len() - self.taken);
            room[..now].copy_from_slice(&self.block[self.taken..self.taken + now]);
            self.taken += now;
            room = &mut room[now..];
        }
        Ok(())
    }

    /// Reads the rest of the file.
    pub(super) fn read_to_end(&mut self) -> Result<Vec<u8>> {
        let mut bytes = self.block[self.taken..].to_vec();
        while self.next_block()? {
            bytes.extend_from_slice(&self.block);
        }
        self.taken = self.block.len();
        Ok(bytes)
    }

    /// Reads and checks the next block; false at the end.
    pub(super) fn next_block(&mut self) -> Result<bool> {
        let offset = self.blocks as u64 * BLOCK_BYTES as u64;
        let length = self.entry.bytes.saturating_sub(offset).min(BLOCK_BYTES as u64) as usize;
        if length == 0 {
            return Ok(false);
        }
        self.block.resize(length, 0);
        self.taken = 0;
        self.source.read_exact(&mut self.block).map_err(Error::storage("read", &self.path))?;
        self.entry.check(&self.path, self.blocks, &self.block)?;
        self.blocks += 1;
        Ok(true)
    }
}

/// Maps a whole file for lookups, after checking every byte; also returns its path for messages.
pub(super) fn map(storage: &dyn Storage, directory: &str, entry: &FileEntry) -> Result<(String, Bytes)> {
    let path = locate(storage, directory, entry)?;
    let bytes = storage.map(&path).map_err(Error::storage("map", &path))?;
    let got = bytes.as_ref().as_ref().len() as u64;
    if got != entry.bytes {
        return Err(Error::FileLength { file: path, expected: entry.bytes, got });
    }
    for (block, bytes) in bytes.as_ref().as_ref().chunks(BLOCK_BYTES).enumerate() {
        entry.check(&path, block, bytes)?;
    }
    Ok((path, bytes))
}

/// The path of a file; fails if it does not exist or has the wrong length.
fn locate(storage: &dyn Storage, directory: &str, entry: &FileEntry) -> Result<String> {
    let path = format!("{directory}/{}", entry.path);
    match storage.size(&path).map_err(Error::storage("open", &path))? {
        None => Err(Error::MissingFile { file: path }),
        Some(got) if got != entry.bytes => Err(Error::FileLength { file: path, expected: entry.bytes, got }),
        Some(_) => Ok(path),
    }
}

/// The one bit whose flipping turns the checksum `expected` of `length` bytes into `got`, if there is one.
///
/// Flipping the last bit of the input changes a CRC by the polynomial; flipping the bit before, by the polynomial advanced one
/// step; and so on. Bits are processed from the lowest of the first byte to the highest of the last.
pub(super) fn find_flip(expected: u32, got: u32, length: usize) -> Option<Flip> {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let (wanted, mut difference) = (expected ^ got, POLYNOMIAL);
    for from_end in 0..length as u64 * 8 {
        if difference == wanted {
            return Some(Flip { offset: length as u64 - 1 - from_end / 8, bit: 7 - (from_end % 8) as u32 });
        }
        difference = if difference & 1 == 1 { difference >> 1 ^ POLYNOMIAL } else { difference >> 1 };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Memory;

    #[test]
    fn a_file_of_many_blocks_round_trips() {
        let storage = Memory::new();
        let bytes: Vec<u8> = (0..2 * BLOCK_BYTES + 77).map(|at| ((at * 31) >> 3) as u8).collect();
        let mut writer = FileWriter::create(&storage, "d", "f").unwrap();
        bytes.chunks(100_003).for_each(|chunk| writer.write(chunk).unwrap());
        let entry = writer.finish().unwrap();
        assert_eq!((entry.bytes, entry.crc32c.len()), (bytes.len() as u64, 24));
        let mut reader = FileReader::open(&storage, "d", &entry).unwrap();
        let mut first = vec![0; 1_500_000];
        reader.read(&mut first).unwrap();
        first.extend(reader.read_to_end().unwrap());
        assert!(first == bytes);
        assert!(reader.read(&mut [0]).is_err(), "there is no more");
        for from in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5, bytes.len()] {
            let mut reader = FileReader::open_at(&storage, "d", &entry, from as u64).unwrap();
            assert!(reader.read_to_end().unwrap() == bytes[from..], "from {from}");
        }
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is() {
        let bytes: Vec<u8> = (0..5000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let right = crc_fast::crc32_iscsi(&bytes);
        for (at, bit) in [(0, 0), (0, 7), (1, 3), (2500, 5), (4999, 0), (4999, 7)] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1 << bit;
            let found = find_flip(right, crc_fast::crc32_iscsi(&wrong), wrong.len());
            assert_eq!(found, Some(Flip { offset: at as u64, bit }));
        }
        assert_eq!(find_flip(right, right ^ 0x1234_5678, 20), None, "more than one bit");
    }

    #[test]
    fn a_missing_or_truncated_file_is_named() {
        let storage = Memory::new();
        let entry = FileEntry { path: "f".into(), bytes: 10, crc32c: "00000000".into() };
        let open = |storage: &Memory| FileReader::open(storage, "d", &entry).err();
        assert_eq!(open(&storage), Some(Error::MissingFile { file: "d/f".into() }));
        storage.put("d/f", vec![0; 9]);
        assert_eq!(open(&storage), Some(Error::FileLength { file: "d/f".into(), expected: 10, got: 9 }));
    }
}
