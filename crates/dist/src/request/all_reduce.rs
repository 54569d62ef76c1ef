//! Reduces the numbers of all workers: each sends the same count, and all get the sum, the mean, the maximum or the minimum.
//!
//! The server reduces in the order of ranks, in double precision, so the result does not depend on the order of arrival. Meant
//! for metrics and decisions, a few kilobytes occasionally; gradients are pushed instead.

use super::Request;
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Contribution, Outcome, State};
pub use crate::server::{Collective, Reduce};

/// The request.
#[derive(Debug, Clone)]
pub struct AllReduce {
    /// Its number among the worker's collectives, from 0.
    pub number: u64,
    /// Number of workers in the job.
    pub workers: u32,
    /// How numbers are reduced.
    pub op: Reduce,
    /// This worker's numbers.
    pub values: Vec<f64>,
}

impl Request for AllReduce {
    const NAME: &'static str = "all-reduce";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        payload.put(&[self.number]);
        payload.put(&[self.workers, self.op as u32]);
        payload.put(&[self.values.len() as u64]);
        payload.put(&self.values);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let number = reader.one::<u64>()?;
        let head = reader.take::<u32>(2)?;
        let length = usize::try_from(reader.one::<u64>()?).unwrap_or(usize::MAX);
        let values = reader.take::<f64>(length)?.to_vec();
        reader.end()?;
        Ok(AllReduce { number, workers: head[0], op: Reduce::from_number(head[1])?, values })
    }

    /// Replies when the last worker has arrived.
    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        let AllReduce { number, workers, op, values } = self;
        let collective = Collective::AllReduce { workers, op, length: values.len() };
        server.arrive(caller, number, collective, Contribution::Numbers(values))
    }
}

/// Decodes a reply: as many numbers as were sent.
pub fn decode(reply: &[u8], values: &mut [f64]) -> Result<()> {
    let mut reader = Reader::new(reply);
    values.copy_from_slice(reader.take(values.len())?);
    reader.end()
}
