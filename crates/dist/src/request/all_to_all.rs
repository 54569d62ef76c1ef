//! Every worker sends parts to other workers, and gets the parts that are addressed to it.
//!
//! This moves rows between workers, which have no connections to each other, only to the servers. The receiver's rank selects
//! the server that relays a part, so each of S servers relays one S-th. A server holds all parts of a round until the last
//! worker has arrived, so workers send a few megabytes at a time.

use std::collections::BTreeMap;

use super::Request;
use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Collective, Contribution, Outcome, State, put_parts};

/// The request.
#[derive(Debug, Clone)]
pub(crate) struct AllToAll {
    /// Its number among the worker's collectives, from 0.
    pub number: u64,
    /// Number of workers in the job.
    pub workers: u32,
    /// This worker's parts, by the rank of the receiver.
    pub parts: BTreeMap<u32, Vec<u8>>,
}

impl Request for AllToAll {
    const NAME: &'static str = "all-to-all";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.number]);
        payload.put(&[self.workers]);
        let parts: Vec<(u32, &[u8])> = self.parts.iter().map(|(&to, part)| (to, part.as_slice())).collect();
        put_parts(&mut payload, &parts);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let number = reader.one::<u64>()?;
        let workers = reader.one::<u32>()?;
        let parts = take_parts(&mut reader)?;
        reader.end()?;
        let count = parts.len();
        let parts: BTreeMap<u32, Vec<u8>> = parts.into_iter().map(|(to, part)| (to, part.to_vec())).collect();
        if parts.len() < count {
            return Err(Error::Damaged { what: "all-to-all: two parts for one worker" });
        }
        Ok(AllToAll { number, workers, parts })
    }

    /// Replies when the last worker has arrived.
    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        let AllToAll { number, workers, parts } = self;
        server.arrive(caller, number, Collective::AllToAll { workers }, Contribution::Parts(parts))
    }
}

/// Decodes a reply: the parts for this worker, with the ranks of their senders.
pub(crate) fn decode(answer: &[u8]) -> Result<Vec<(u32, &[u8])>> {
    let mut reader = Reader::new(answer);
    let parts = take_parts(&mut reader)?;
    reader.end()?;
    Ok(parts)
}

fn take_parts<'a>(reader: &mut Reader<'a>) -> Result<Vec<(u32, &'a [u8])>> {
    let count = usize::try_from(reader.one::<u64>()?).unwrap_or(usize::MAX);
    let workers = reader.take::<u32>(count)?;
    let lengths = reader.take::<u64>(count)?;
    let part = |(&worker, &length): (&u32, &u64)| {
        Ok((worker, reader.take::<u8>(usize::try_from(length).unwrap_or(usize::MAX))?))
    };
    workers.iter().zip(lengths).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(parts: &[(u32, &[u8])]) -> Payload {
        let mut payload = Payload::new();
        put_parts(&mut payload, parts);
        payload
    }

    #[test]
    fn parts_round_trip_even_if_they_are_empty() {
        for parts in [vec![], vec![(3, &b""[..])], vec![(0, &b"a"[..]), (7, b"123456789"), (2, b"")]] {
            assert_eq!(decode(answer(&parts).bytes()).unwrap(), parts);
        }
    }

    #[test]
    fn a_length_beyond_the_end_and_a_receiver_named_twice_are_refused() {
        let mut cut = answer(&[(0, b"12345678")]);
        let length = cut.bytes().len();
        assert!(decode(&cut.bytes()[..length - 1]).is_err());
        cut.bytes_mut()[16] = 0xff;
        assert!(decode(cut.bytes()).is_err());
        let mut twice = Payload::new();
        twice.put(&[0u64]);
        twice.put(&[2u32]);
        put_parts(&mut twice, &[(1, b"a"), (1, b"b")]);
        assert!(AllToAll::decode(twice).is_err());
    }
}
