//! Creates the tables of a program: every worker sends this, and the first request creates them.
//!
//! Workers run the same program, so they send the same description; a difference is an error that names the table. The request
//! carries initial values of the dense blocks, which are used only if the block is new: a restarted worker does not overwrite
//! trained values.

use super::{Request, from_json, now};
use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};
use crate::server::{Caller, Outcome, State};
pub use crate::server::{Created, Description, ServerShare};

/// The request.
#[derive(Debug, Clone)]
pub struct CreateTables {
    /// What the program needs of this server.
    pub description: Description,
    /// Initial values of the dense blocks, in order.
    pub first_values: Vec<Vec<f32>>,
}

impl Request for CreateTables {
    const NAME: &'static str = "create tables";
    const IS_SLOW: bool = true;

    fn encode(&self) -> Result<Payload> {
        let description =
            serde_json::to_vec(&self.description).map_err(|_| Error::Damaged { what: "description of tables" })?;
        let mut payload = Payload::new();
        payload.put(&[description.len() as u64]);
        payload.put(&description);
        self.first_values.iter().for_each(|values| payload.put(values));
        Ok(payload)
    }

    fn decode(payload: Payload) -> Result<Self> {
        let mut reader = Reader::new(payload.bytes());
        let length = reader.one::<u64>()?;
        let description = reader.take::<u8>(usize::try_from(length).unwrap_or(usize::MAX))?;
        let description: Description = from_json(description, "description of tables")?;
        let mut first_values = Vec::with_capacity(description.dense.len());
        for (_, spec) in &description.dense {
            let count = spec.shape.iter().try_fold(1usize, |count, &side| count.checked_mul(side));
            first_values.push(reader.take::<f32>(count.unwrap_or(usize::MAX))?.to_vec());
        }
        reader.end()?;
        Ok(CreateTables { description, first_values })
    }

    fn apply(self, server: &State, _caller: Caller) -> Result<Outcome> {
        let values: Vec<&[f32]> = self.first_values.iter().map(Vec::as_slice).collect();
        let Created { is_new, session, states } = server.create_tables(self.description, &values)?;
        let mut reply = Payload::new();
        reply.put(&[u32::from(is_new)]);
        reply.put(&[session]);
        reply.put(&[states.len() as u64]);
        reply.put(&states);
        now(reply)
    }
}

/// Decodes a reply.
pub fn decode(reply: &[u8]) -> Result<Created> {
    let mut reader = Reader::new(reply);
    let (is_new, session, length) = (reader.one::<u32>()? == 1, reader.one()?, reader.one::<u64>()?);
    let states = reader.take(usize::try_from(length).unwrap_or(usize::MAX))?.to_vec();
    Ok(Created { is_new, session, states })
}
