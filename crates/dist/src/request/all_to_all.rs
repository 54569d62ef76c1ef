//! Something of every worker for every worker: each sends parts addressed to others, and gets those addressed to it.
//!
//! This is how rows move between workers, which know no way to each other but the servers. A part goes to the server that
//! its receiver's rank picks, so with S servers each passes on one S-th; a server holds a round until the last worker has
//! come, so workers bring a few megabytes at a time.

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
    /// How many workers the job has.
    pub workers: u32,
    /// What this worker has for whom.
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

    /// Answers when the last one asks.
    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        let AllToAll { number, workers, parts } = self;
        server.arrive(caller, number, Collective::AllToAll { workers }, Contribution::Parts(parts))
    }
}

/// Reads an answer: what others have for this worker, by their ranks.
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
    fn parts_come_back_as_they_were_also_empty_ones() {
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
