//! Puts rows with given weights, for keys that have no row yet: the rows of an embedding that was trained elsewhere.
//!
//! Rows that exist stay as they are, so a repeat has no effect, and neither has a restarted worker that sends its rows again.

use openfleet_core::Key;

use super::{Request, done};
use crate::error::Result;
use crate::frame::{Payload, Reader};
use crate::gradients::{KeysView, put_keys, take_keys};
use crate::server::{Caller, Outcome, State};

/// The request.
#[derive(Debug, Clone)]
pub struct PutRows {
    /// Number of the table.
    pub table: u32,
    /// D.
    pub dim: u32,
    /// K.
    pub keys: Vec<Key>,
    /// K x D.
    pub rows: Vec<f32>,
}

impl Request for PutRows {
    const NAME: &'static str = "put rows";

    fn encode(&self) -> Result<Payload> {
        let mut payload = Payload::new();
        put_keys(&mut payload, &[self.table], &[self.dim], &self.keys);
        payload.put(&self.rows);
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let KeysView { tables, dims, keys } = take_keys(&mut reader)?;
        let (&[table], &[dim]) = (tables, dims) else {
            return Err(crate::Error::Damaged { what: "rows to put: they are of one table" });
        };
        let rows = reader.take(keys.len().saturating_mul(dim as usize))?;
        reader.end()?;
        Ok(PutRows { table, dim, keys: keys.to_vec(), rows: rows.to_vec() })
    }

    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        server.tables.put(self.table, self.dim, &self.keys, &self.rows)?;
        done()
    }
}
