//! What a worker can ask of a server. One request a file: its bytes, its answer's bytes, and what it does.
//!
//! A request is encoded into a [`Payload`] by the client, decoded in place by the server (keys and floats are not
//! copied), and applied to the server's [`State`](crate::server::State). Requests know no sockets.

pub mod all_reduce;
pub mod all_to_all;
pub mod barrier;
pub mod create_tables;
pub mod cut;
pub mod depart;
pub mod exchange_geo;
pub mod join;
pub mod leave;
pub mod load;
pub mod pull_dense;
pub mod pull_sparse;
pub mod push;
pub mod save;
pub mod shrink;
pub mod status;
pub mod stop;

use openfleet_core::strategy::FloatWidth;

use crate::error::{Error, Result};
use crate::frame::{Payload, Reader};

/// Answers carry the kind of their request with this bit.
pub const REPLY: u16 = 0x8000;
/// An answer that says what went wrong.
pub const FAILED: u16 = 0xffff;

/// Every kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// Nothing but a sign of life.
    Heartbeat = 1,
    /// Make the tables of a program, once.
    CreateTables = 16,
    /// Rows of sparse tables.
    PullSparse = 17,
    /// Values of dense blocks.
    PullDense = 18,
    /// Gradients of sparse rows and dense blocks.
    Push = 19,
    /// Differences up, and what others changed down.
    ExchangeGeo = 20,
    /// Wait for all workers.
    Barrier = 21,
    /// This stream has no more work in this pass.
    Leave = 22,
    /// This stream takes part from now on.
    Join = 26,
    /// How the server stands.
    Status = 23,
    /// End the server.
    Stop = 25,
    /// This worker is done for good.
    Depart = 27,
    /// Numbers of all workers, made one.
    AllReduce = 28,
    /// Let rows fade, and remove those that no longer earn their place.
    Shrink = 29,
    /// Bring all servers to one moment, and mark it.
    Cut = 30,
    /// Write a checkpoint.
    Save = 31,
    /// Take tables from a checkpoint.
    Load = 32,
    /// Something of every worker for every worker.
    AllToAll = 33,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 18] = [
        Kind::Heartbeat,
        Kind::CreateTables,
        Kind::PullSparse,
        Kind::PullDense,
        Kind::Push,
        Kind::ExchangeGeo,
        Kind::Barrier,
        Kind::AllReduce,
        Kind::Join,
        Kind::Leave,
        Kind::Depart,
        Kind::Status,
        Kind::Shrink,
        Kind::Cut,
        Kind::Save,
        Kind::Load,
        Kind::Stop,
        Kind::AllToAll,
    ];

    /// From a frame.
    pub fn from_number(kind: u16) -> Result<Self> {
        Kind::ALL.into_iter().find(|known| *known as u16 == kind).ok_or(Error::UnknownKind { kind })
    }

    /// Whether it may keep a thread busy for seconds: then it must not be one that other requests need.
    pub fn is_slow(self) -> bool {
        matches!(self, Kind::Shrink | Kind::Save | Kind::Load | Kind::CreateTables)
    }

    /// As messages spell it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Heartbeat => "heartbeat",
            Kind::CreateTables => "create tables",
            Kind::PullSparse => "pull sparse",
            Kind::PullDense => "pull dense",
            Kind::Push => "push",
            Kind::ExchangeGeo => "exchange geo",
            Kind::Barrier => "barrier",
            Kind::Leave => "leave",
            Kind::Join => "join",
            Kind::Status => "status",
            Kind::Stop => "stop",
            Kind::Depart => "depart",
            Kind::AllReduce => "all-reduce",
            Kind::AllToAll => "all-to-all",
            Kind::Shrink => "shrink",
            Kind::Cut => "cut",
            Kind::Save => "save",
            Kind::Load => "load",
        }
    }
}

/// The unique keys that one server keeps of a stage, and the tables they are looked up in.
#[derive(Debug, Clone)]
pub struct KeysView<'a> {
    /// Tables by number.
    pub tables: &'a [u32],
    /// Floats in a row of each.
    pub dims: &'a [u32],
    /// The keys.
    pub keys: &'a [u64],
}

/// The most bytes of an answer: a short request can name one table and one key many times over.
const LONGEST_ANSWER: u64 = 1 << 30;

/// Fails if so many more floats would make an answer too long; before they are allocated.
fn check_answer(reply: &Payload, floats: usize) -> Result<()> {
    let length = (reply.bytes().len() as u64).saturating_add((floats as u64).saturating_mul(4));
    if length <= LONGEST_ANSWER { Ok(()) } else { Err(Error::TooLong { length, cap: LONGEST_ANSWER }) }
}

/// A width as requests carry it.
fn put_width(width: FloatWidth) -> u32 {
    match width {
        FloatWidth::Bits32 => 32,
        FloatWidth::Bits16 => 16,
    }
}

fn take_width(bits: u32) -> Result<FloatWidth> {
    match bits {
        32 => Ok(FloatWidth::Bits32),
        16 => Ok(FloatWidth::Bits16),
        _ => Err(Error::Damaged { what: "request: floats of no known width" }),
    }
}

/// Writes keys and their tables.
pub(crate) fn put_keys(payload: &mut Payload, tables: &[u32], dims: &[u32], keys: &[u64]) {
    payload.put(&[tables.len() as u32, keys.len() as u32]);
    payload.put(tables);
    payload.put(dims);
    payload.put(keys);
}

/// Reads keys and their tables.
pub(crate) fn take_keys<'a>(reader: &mut Reader<'a>) -> Result<KeysView<'a>> {
    let counts = reader.take::<u32>(2)?;
    let tables = reader.take(counts[0] as usize)?;
    let dims = reader.take(counts[0] as usize)?;
    let keys = reader.take(counts[1] as usize)?;
    Ok(KeysView { tables, dims, keys })
}
