//! Pulls rows of sparse tables for the unique keys of a batch: all stages and tables in one request.
//!
//! The reply is the rows, table by table in the requested order, each table as `keys x dim` floats. In geo mode a worker that
//! trains keeps the rows it pulled: they contain the others' earlier changes, which are not sent to it again. That is why pulls
//! are numbered: if the original of a repeated pull arrives late, it must not make the server forget changes that happened in
//! between.

use openfleet_table::Missing;

use super::{Request, now};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::gradients::{KeysView, put_keys, take_keys};
use crate::server::{Caller, Outcome, State, check_answer};

/// The request: a payload that [`begin`] and [`add_stage`] wrote, read in place.
#[derive(Debug, Clone)]
pub struct PullSparse(pub Payload);

/// Begins a request for some stages; every pull of a worker has its own `number`.
pub fn begin(payload: &mut Payload, missing: Missing, number: u64, stages: usize) {
    payload.clear();
    payload.put(&[u32::from(missing == Missing::Create), stages as u32]);
    payload.put(&[number]);
}

/// Adds the keys of a stage.
pub fn add_stage(payload: &mut Payload, tables: &[u32], dims: &[u32], keys: &[u64]) {
    put_keys(payload, tables, dims, keys);
}

/// Reads the rows of the next table of a reply.
pub fn take_rows<'a>(reply: &mut Reader<'a>, keys: usize, dim: usize) -> Result<&'a [f32]> {
    reply.take(keys.saturating_mul(dim))
}

impl Request for PullSparse {
    const NAME: &'static str = "pull sparse";

    fn encode(&self) -> Result<Payload> {
        Ok(self.0.clone())
    }

    fn decode(payload: Payload) -> Result<Self> {
        Ok(PullSparse(payload))
    }

    fn apply(self, server: &State, caller: Caller) -> Result<Outcome> {
        let mut reader = Reader::new(self.0.bytes());
        let head = reader.take::<u32>(2)?;
        let number = reader.one::<u64>()?;
        let missing = if head[0] == 1 { Missing::Create } else { Missing::Initial };
        let tables = &server.tables;
        // New rows and stamps change the table too.
        let _permit = (missing == Missing::Create).then(|| tables.permit());
        let geo = tables.geo().filter(|geo| missing == Missing::Create && geo.is_first(caller.rank, number));
        if let Some(geo) = &geo {
            geo.trains(caller.rank);
        }
        let mut reply = tables.reply();
        let mut scratch = tables.scratch();
        for _ in 0..head[1] {
            let KeysView { tables: numbers, dims, keys } = take_keys(&mut reader)?;
            let floats =
                dims.iter().fold(0, |sum: usize, &dim| sum.saturating_add(dim as usize)).saturating_mul(keys.len());
            check_answer(&reply, floats)?;
            for (&number, &dim) in numbers.iter().zip(dims) {
                let table = tables.sparse(number)?;
                table.check_dim(dim)?;
                if let Some(geo) = &geo {
                    // Before the rows are read: changes from here on are recorded again.
                    geo.changed(number)?.lock().forget(caller.rank, keys);
                }
                let rows = reply.append_zeroed::<f32>(keys.len() * dim as usize);
                table
                    .table
                    .pull(keys, missing, rows, &mut scratch)
                    .map_err(|error| table.error("pulling from", error))?;
            }
        }
        reader.end()?;
        tables.put_scratch(scratch);
        now(reply)
    }
}
