//! Something of every worker for every worker: each sends parts addressed to others, and gets those addressed to it.
//!
//! This is how rows move between workers, which know no way to each other but the servers. A part goes to the server that
//! its receiver's rank picks, so with S servers each passes on one S-th; a server holds a round until the last worker has
//! come, so workers bring a few megabytes at a time.

use std::collections::BTreeMap;

use super::all_reduce::Collective;
use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};
use crate::server::{Brought, Outcome, State};

/// Encodes a request: the how-many-th collective, how many workers the job has, and what this one has for whom.
pub fn encode<'a>(payload: &mut Payload, number: u64, workers: u32, parts: impl Iterator<Item = (u32, &'a [u8])>) {
    payload.clear();
    payload.put(&[number]);
    payload.put(&[workers]);
    put_parts(payload, &parts.collect::<Vec<_>>());
}

/// The bytes of an answer: what others have for a worker, by their ranks.
pub(crate) fn answer(parts: &[(u32, &[u8])]) -> Payload {
    let mut payload = Payload::new();
    put_parts(&mut payload, parts);
    payload
}

/// Reads an answer: what others have for this worker, by their ranks.
pub fn decode(answer: &[u8]) -> Result<Vec<(u32, &[u8])>> {
    let mut reader = Reader::new(answer);
    let parts = take_parts(&mut reader)?;
    reader.end()?;
    Ok(parts)
}

/// Answers when the last one asks.
pub fn apply(state: &State, worker: u32, payload: &[u8]) -> Result<Outcome> {
    let mut reader = Reader::new(payload);
    let number = reader.one::<u64>()?;
    let workers = reader.one::<u32>()?;
    let parts = take_parts(&mut reader)?;
    reader.end()?;
    let count = parts.len();
    let parts: BTreeMap<u32, Vec<u8>> = parts.into_iter().map(|(to, part)| (to, part.to_vec())).collect();
    if parts.len() < count {
        return Err(Error::Damaged { what: "all-to-all: two parts for one worker" });
    }
    state.meet(worker, number, Collective::AllToAll { workers }, Brought::Parts(parts))
}

fn put_parts(payload: &mut Payload, parts: &[(u32, &[u8])]) {
    payload.put(&[parts.len() as u64]);
    payload.put(&parts.iter().map(|(worker, _)| *worker).collect::<Vec<_>>());
    payload.put(&parts.iter().map(|(_, part)| part.len() as u64).collect::<Vec<_>>());
    parts.iter().for_each(|(_, part)| payload.put(part));
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
        encode(&mut twice, 0, 2, [(1, &b"a"[..]), (1, b"b")].into_iter());
        assert!(apply(&State::new(), 0, twice.bytes()).is_err());
    }
}
