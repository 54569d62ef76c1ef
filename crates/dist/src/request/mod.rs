//! What a worker can ask of a server. One request a file: its bytes, its answer's bytes, and what it does.
//!
//! A request is encoded into a [`Payload`] by the client, decoded in place by the server (keys and floats are not copied),
//! and applied to a server's [`State`]. Requests know no sockets; servers know no requests.

pub mod action;
pub mod all_reduce;
pub(crate) mod all_to_all;
pub(crate) mod barrier;
pub(crate) mod committed;
pub mod create_tables;
pub mod cut;
pub(crate) mod depart;
pub mod enter;
pub mod exchange_geo;
pub(crate) mod geo_flush;
pub(crate) mod geo_flush_done;
pub(crate) mod geo_positions;
pub mod heartbeat;
pub mod inspect;
pub mod join;
pub mod leave;
pub(crate) mod load;
pub(crate) mod pull_changes;
pub mod pull_dense;
pub mod pull_sparse;
pub(crate) mod push;
pub(crate) mod recall;
pub(crate) mod save;
pub mod scale;
pub mod shrink;
pub mod status;
pub(crate) mod stop;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::server::{Caller, Outcome, State};

/// Answers carry the kind of their request with this bit.
pub const REPLY: u16 = 0x8000;
/// An answer that says what went wrong.
pub const FAILED: u16 = 0xffff;
/// An answer that says that the worker has to start again: the job returned to a checkpoint, or needs all workers.
pub const RECALLED: u16 = 0xfffe;

/// One kind of request. Its bytes are a payload: most are written field by field, or are JSON where nothing is hot.
pub trait Request: Sized {
    /// As messages spell it.
    const NAME: &'static str;
    /// Whether it may keep a thread busy for seconds: then it must not be one that other requests need.
    const IS_SLOW: bool = false;
    /// Whether it may be asked by a worker that has to enter again.
    const ENTERS: bool = false;

    /// As bytes.
    fn encode(&self) -> Result<Payload>;
    /// From bytes, which may be anybody's.
    fn decode(payload: Payload) -> Result<Self>;
    /// Does it, and answers now or later.
    fn apply(self, server: &State, caller: Caller) -> Result<Outcome>;
}

macro_rules! requests {
    ($($kind:ident = $number:literal: $request:ty, $about:literal;)*) => {
        /// Every kind of request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Kind {
            $(#[doc = $about] $kind = $number,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// As messages spell it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => <$request as Request>::NAME,)*
                }
            }

            /// Whether it may keep a thread busy for seconds.
            pub fn is_slow(self) -> bool {
                match self {
                    $(Kind::$kind => <$request as Request>::IS_SLOW,)*
                }
            }

            fn enters(self) -> bool {
                match self {
                    $(Kind::$kind => <$request as Request>::ENTERS,)*
                }
            }
        }

        $(impl Numbered for $request {
            const KIND: Kind = Kind::$kind;
        })*

        fn apply(server: &State, caller: Caller, kind: Kind, payload: Payload) -> Result<Outcome> {
            match kind {
                $(Kind::$kind => <$request>::decode(payload)?.apply(server, caller),)*
            }
        }
    };
}

/// A request with its number on the wire.
pub trait Numbered: Request {
    /// The number.
    const KIND: Kind;
}

requests! {
    Heartbeat = 1: heartbeat::Heartbeat, "A sign of life, answered with who is missing.";
    CreateTables = 16: create_tables::CreateTables, "Make the tables of a program, once.";
    PullSparse = 17: pull_sparse::PullSparse, "Rows of sparse tables.";
    PullDense = 18: pull_dense::PullDense, "Values of dense blocks.";
    Push = 19: push::Push, "Gradients of sparse rows and dense blocks.";
    ExchangeGeo = 20: exchange_geo::ExchangeGeo, "Differences up, and what others changed down.";
    Barrier = 21: barrier::Barrier, "Wait for all workers.";
    Leave = 22: leave::Leave, "A stream has no more work in a pass.";
    Status = 23: status::StatusRequest, "How the server stands.";
    Stop = 25: stop::Stop, "End the server.";
    Join = 26: join::Join, "A stream joins a pass.";
    Depart = 27: depart::Depart, "A worker is done.";
    AllReduce = 28: all_reduce::AllReduce, "Numbers of all workers, reduced.";
    Shrink = 29: shrink::ShrinkRequest, "Remove rows that no longer earn their place.";
    Cut = 30: cut::Cut, "Bring all servers to one moment, and mark it.";
    Save = 31: save::Save, "Write a checkpoint.";
    Load = 32: load::LoadRequest, "Take tables from a checkpoint.";
    AllToAll = 33: all_to_all::AllToAll, "Something of every worker for every worker.";
    Inspect = 34: inspect::Inspect, "What a worker sees before it enters.";
    Enter = 35: enter::EnterRequest, "A worker enters the job.";
    Action = 36: action::ActionRequest, "A worker's script begins or completes an action.";
    GeoPositions = 37: geo_positions::GeoPositions, "GEO: all that was learnt so far was sent.";
    Committed = 38: committed::Committed, "A checkpoint was committed.";
    Recall = 39: recall::Recall, "Make all workers start again.";
    GeoFlush = 40: geo_flush::GeoFlush, "GEO: who has learnt what no server has.";
    GeoFlushDone = 41: geo_flush_done::GeoFlushDone, "GEO: what was asked for was sent.";
    Scale = 43: scale::Scale, "By which factor a measured step is scaled.";
    PullChanges = 42: pull_changes::PullChanges, "How dense blocks differ from what a worker holds.";
}

impl Kind {
    /// From a frame.
    pub fn from_number(kind: u16) -> Result<Self> {
        Kind::ALL.iter().copied().find(|known| *known as u16 == kind).ok_or(Error::UnknownKind { kind })
    }
}

impl State {
    /// Answers one request of a worker that said hello, unless a newer incarnation of it was let in: from then on nothing
    /// that an older one sent changes anything, not even what was being read when the newer came.
    pub fn handle_as(
        &self,
        rank: u32,
        incarnation: openfleet_core::topology::Incarnation,
        kind: Kind,
        payload: Payload,
    ) -> Outcome {
        let caller = Caller { rank, incarnation: Some(incarnation) };
        let answer = self.fenced(caller, kind.is_slow(), kind.enters(), || apply(self, caller, kind, payload));
        answer.and_then(|answer| answer).unwrap_or_else(|error| Outcome::Now(Err(error)))
    }

    /// Answers one request of a worker in this process, which has no older incarnations.
    pub fn handle(&self, worker: u32, kind: Kind, payload: Payload) -> Outcome {
        let caller = Caller { rank: worker, incarnation: None };
        apply(self, caller, kind, payload).unwrap_or_else(|error| Outcome::Now(Err(error)))
    }
}

/// A value as JSON.
fn to_json(value: &impl Serialize, what: &'static str) -> Result<Payload> {
    let mut payload = Payload::new();
    payload.put(&serde_json::to_vec(value).map_err(|_| Error::Damaged { what })?);
    Ok(payload)
}

/// A value from JSON.
fn from_json<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|_| Error::Damaged { what })
}

/// An answer that is there at once.
fn now(answer: Payload) -> Result<Outcome> {
    Ok(Outcome::Now(Ok(answer)))
}

/// An answer without content, there at once.
fn done() -> Result<Outcome> {
    now(Payload::new())
}
