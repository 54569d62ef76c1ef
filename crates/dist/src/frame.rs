//! Frames: the bytes that a connection carries.
//!
//! A frame is a header of 32 bytes and a payload, all numbers little-endian:
//!
//! ```text
//! magic u32 | version u16 | kind u16 | request u64 | length u64 | payload CRC32C u32 | header CRC32C u32 | payload
//! ```
//!
//! The length is checked against a limit before memory is allocated for it. Payloads start at an address divisible by 8, so
//! keys and floats are read in place. This module knows no sockets and no requests.

use std::sync::Arc;

use crc_fast::crc32_iscsi as crc32c;
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// First four bytes of every frame.
pub const MAGIC: u32 = u32::from_le_bytes(*b"OFLT");
/// Protocol version. Increment it with every incompatible change.
pub const VERSION: u16 = 7;
/// Bytes of a header.
pub const HEADER: usize = 32;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The meaning of the payload: a request kind, or a reply.
    pub kind: u16,
    /// Request number: chosen by the client, repeated in the reply.
    pub request: u64,
    /// Bytes of payload.
    pub length: u64,
    /// CRC of the payload.
    pub checksum: u32,
}

impl Header {
    /// Makes the header of a payload.
    pub fn of(kind: u16, request: u64, payload: &[u8]) -> Self {
        Header { kind, request, length: payload.len() as u64, checksum: crc32c(payload) }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.request.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.checksum.to_le_bytes());
        let own = crc32c(&bytes[..28]);
        bytes[28..32].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Decodes a header. Refuses another protocol, another version, a damaged header and more than `cap` bytes of payload.
    pub fn decode(bytes: &[u8; HEADER], cap: u64) -> Result<Self> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if u32_at(0) != MAGIC {
            return Err(Error::NotOurs { got: u32_at(0) });
        }
        if u16_at(4) != VERSION {
            return Err(Error::Version { expected: VERSION, got: u16_at(4) });
        }
        if crc32c(&bytes[..28]) != u32_at(28) {
            return Err(Error::Damaged { what: "header" });
        }
        let header = Header { kind: u16_at(6), request: u64_at(8), length: u64_at(16), checksum: u32_at(24) };
        if header.length > cap {
            return Err(Error::TooLong { length: header.length, cap });
        }
        Ok(header)
    }

    /// Fails unless the checksum of the payload matches.
    pub fn check(&self, payload: &[u8]) -> Result<()> {
        if crc32c(payload) == self.checksum { Ok(()) } else { Err(Error::Damaged { what: "payload" }) }
    }
}

/// Bytes that are aligned for keys and floats.
#[derive(Debug, Default)]
pub struct Payload {
    /// The memory, which may be longer than the payload: what is written over need not be zeroed first.
    words: Vec<u64>,
    length: usize,
    /// Where the memory goes when the payload is dropped.
    pool: Option<PayloadPool>,
}

/// Memory of large payloads, used again. The allocator returns blocks of this size to the kernel, which maps and zeroes the
/// pages of the next one: a sync step of a model with 1.7 MB of parameters loses a tenth of its time to that.
#[derive(Debug, Clone, Default)]
pub struct PayloadPool(Arc<Mutex<Vec<Vec<u64>>>>);

impl PayloadPool {
    /// Memory of fewer bytes is left to the allocator.
    const LEAST: usize = 64 << 10;
    /// Memory of more bytes is freed, so that one large request does not occupy it for good.
    const LARGEST: usize = 8 << 20;
    /// Maximum number of free blocks.
    const MOST: usize = 8;

    /// An empty payload, to append to.
    pub fn empty(&self) -> Payload {
        let words = self.0.lock().pop().unwrap_or_default();
        Payload { words, length: 0, pool: Some(self.clone()) }
    }

    /// A payload of `length` bytes to read into. Its bytes are zeros or those of an earlier payload.
    pub fn sized(&self, length: usize) -> Payload {
        if length < Self::LEAST {
            return Payload::zeros(length);
        }
        let mut payload = self.empty();
        payload.grow(length);
        payload
    }

    fn put(&self, words: Vec<u64>) {
        if (Self::LEAST..=Self::LARGEST).contains(&(words.capacity() * 8)) {
            let mut free = self.0.lock();
            if free.len() < Self::MOST {
                free.push(words);
            }
        }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.put(std::mem::take(&mut self.words));
        }
    }
}

impl Clone for Payload {
    fn clone(&self) -> Self {
        let Some(pool) = &self.pool else {
            return Payload { words: self.words.clone(), length: self.length, pool: None };
        };
        let mut copy = pool.empty();
        copy.put(self.bytes());
        copy
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Payload {
    /// An empty payload.
    pub fn new() -> Self {
        Payload::default()
    }

    /// `length` zero bytes, to read into.
    pub fn zeros(length: usize) -> Self {
        Payload { words: vec![0; length.div_ceil(8)], length, pool: None }
    }

    /// Removes the content and keeps the memory.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    /// The bytes, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }

    /// Appends an array at the next multiple of 8 bytes.
    pub fn put<T: bytemuck::Pod>(&mut self, values: &[T]) {
        let start = self.grow(std::mem::size_of_val(values));
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.bytes_mut()[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Appends `count` values at the next multiple of 8 bytes, and returns them to be filled, all of them: they may be those of
    /// an earlier payload.
    pub fn append<T: bytemuck::Pod>(&mut self, count: usize) -> &mut [T] {
        let bytes = count * std::mem::size_of::<T>();
        let start = self.grow(bytes);
        bytemuck::cast_slice_mut(&mut self.bytes_mut()[start..start + bytes])
    }

    /// Appends zero bytes up to the next multiple of 8.
    pub fn pad(&mut self) {
        let end = self.length;
        self.length = end.next_multiple_of(8);
        self.bytes_mut()[end..].fill(0);
    }

    /// Appends zero bytes up to the next multiple of 8 and then bytes of any value. Returns where the latter begin.
    fn grow(&mut self, bytes: usize) -> usize {
        self.pad();
        let start = self.length;
        self.length = start + bytes;
        let words = self.length.div_ceil(8);
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
        start
    }
}

/// Reads a payload front to back. Each array starts at a multiple of 8 bytes.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of a payload.
    pub fn new(payload: &'a [u8]) -> Self {
        Reader { bytes: payload, at: 0 }
    }

    /// The next `count` values, in place. Fails if the payload is too short.
    pub fn take<T: bytemuck::Pod>(&mut self, count: usize) -> Result<&'a [T]> {
        let start = self.at.next_multiple_of(8);
        let end = count.checked_mul(std::mem::size_of::<T>()).and_then(|bytes| start.checked_add(bytes));
        let end =
            end.filter(|&end| end <= self.bytes.len()).ok_or(Error::Damaged { what: "payload: it ends early" })?;
        self.at = end;
        bytemuck::try_cast_slice(&self.bytes[start..end]).map_err(|_| Error::Damaged { what: "payload: not aligned" })
    }

    /// The next value.
    pub fn one<T: bytemuck::Pod>(&mut self) -> Result<T> {
        Ok(self.take::<T>(1)?[0])
    }

    /// Fails if bytes are left over.
    pub fn end(&self) -> Result<()> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(Error::Damaged { what: "payload: bytes are left over" }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_round_trips() {
        let header = Header::of(7, 42, b"payload");
        assert_eq!(Header::decode(&header.encode(), 100).unwrap(), header);
        header.check(b"payload").unwrap();
        assert!(header.check(b"pAyload").is_err());
    }

    #[test]
    fn a_length_above_the_cap_is_refused_before_anything_is_allocated() {
        let header = Header { kind: 1, request: 1, length: 1 << 63, checksum: 0 };
        let error = Header::decode(&header.encode(), 1 << 20).unwrap_err();
        assert!(matches!(error, Error::TooLong { length, cap } if length == 1 << 63 && cap == 1 << 20));
    }

    #[test]
    fn another_protocol_another_version_and_a_flipped_bit_are_told_apart() {
        let good = Header::of(1, 2, b"").encode();
        let mut foreign = good;
        foreign[0] = b'G';
        assert!(matches!(Header::decode(&foreign, 10), Err(Error::NotOurs { .. })));
        let mut newer = good;
        newer[4] = 9;
        assert!(matches!(Header::decode(&newer, 10), Err(Error::Version { expected: VERSION, got: 9 })));
        let mut damaged = good;
        damaged[9] ^= 4;
        assert!(matches!(Header::decode(&damaged, 10), Err(Error::Damaged { .. })));
    }

    #[test]
    fn the_memory_of_a_large_payload_is_used_again_and_nothing_of_it_is_between_arrays() {
        let pool = PayloadPool::default();
        let mut first = pool.sized(100_000);
        first.bytes_mut().fill(7);
        let memory = first.bytes().as_ptr();
        drop(first);
        let second = pool.sized(90_001);
        assert_eq!((second.bytes().as_ptr(), second.bytes().len()), (memory, 90_001));
        drop(second);
        let mut third = pool.empty();
        assert!(third.bytes().is_empty());
        third.put(&[1u8]);
        third.put(&[2u32]);
        third.pad();
        third.append::<f32>(20_000).fill(0.5);
        assert_eq!(third.bytes()[..16], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0], "what was not put is zero");
        assert_eq!((third.bytes().as_ptr(), third.bytes().len()), (memory, 80_016));
        assert_eq!(third.clone(), third);
        drop(third);
        // Small payloads, too many and too large ones are freed.
        drop(pool.sized(10));
        drop((0..9).map(|_| pool.sized(70_000)).collect::<Vec<_>>());
        drop(pool.sized(9 << 20));
        let kept: Vec<usize> = pool.0.lock().iter().map(Vec::capacity).collect();
        assert_eq!(kept.len(), PayloadPool::MOST - 1, "{kept:?}");
        assert!(kept.iter().all(|&words| words < (1 << 20)));
    }

    #[test]
    fn arrays_are_read_in_place_and_a_short_payload_is_an_error() {
        let mut payload = Payload::new();
        payload.put(&[1u32]);
        payload.put(&[5u64, 6]);
        payload.append::<f32>(3).copy_from_slice(&[1.0, 2.0, 3.0]);
        let mut reader = Reader::new(payload.bytes());
        assert_eq!(reader.one::<u32>().unwrap(), 1);
        assert_eq!(reader.take::<u64>(2).unwrap(), [5, 6]);
        assert_eq!(reader.take::<f32>(3).unwrap(), [1.0, 2.0, 3.0]);
        reader.end().unwrap();
        assert!(reader.take::<u8>(1).is_err());
        assert!(Reader::new(payload.bytes()).take::<u64>(usize::MAX).is_err());
    }
}
