//! Requests of a worker to a server. One request per file: its encoding, the encoding of its reply, and what it does.
//!
//! The client encodes a request into a [`Payload`]; the server decodes it in place (keys and floats are not copied) and applies
//! it to its [`State`]. Requests know no sockets; servers know no requests.

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
pub(crate) mod list_keys;
pub(crate) mod load;
pub(crate) mod pull_changes;
pub mod pull_dense;
pub mod pull_sparse;
pub(crate) mod push;
pub mod put_rows;
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

/// A reply has the kind of its request with this bit set.
pub const REPLY: u16 = 0x8000;
/// Kind of a reply that carries an error message.
pub const FAILED: u16 = 0xffff;
/// Kind of a reply that tells the worker to restart: the job returned to a checkpoint, or all workers have to repeat a
/// collective.
pub const RECALLED: u16 = 0xfffe;

/// One kind of request. Most payloads are written field by field; requests that are not time-critical use JSON.
pub trait Request: Sized {
    /// The name in messages.
    const NAME: &'static str;
    /// Whether it may block a thread for seconds. Such a request runs on a thread of its own.
    const IS_SLOW: bool = false;
    /// Whether a worker may send it before it has entered.
    const ENTERS: bool = false;

    /// Encodes the request.
    fn encode(&self) -> Result<Payload>;
    /// Decodes a request. The bytes are untrusted.
    fn decode(payload: Payload) -> Result<Self>;
    /// Carries the request out, and replies now or later.
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
            /// All kinds.
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            /// The name in messages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => <$request as Request>::NAME,)*
                }
            }

            /// Whether it may block a thread for seconds.
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
    Heartbeat = 1: heartbeat::Heartbeat, "A heartbeat; the reply lists missing workers.";
    CreateTables = 16: create_tables::CreateTables, "Create the tables of a program, once.";
    PullSparse = 17: pull_sparse::PullSparse, "Pull rows of sparse tables.";
    PullDense = 18: pull_dense::PullDense, "Pull values of dense blocks.";
    Push = 19: push::Push, "Push gradients of sparse rows and dense blocks.";
    ExchangeGeo = 20: exchange_geo::ExchangeGeo, "GEO: send differences, receive what others changed.";
    Barrier = 21: barrier::Barrier, "Wait for all workers.";
    Leave = 22: leave::Leave, "A stream has no more work in a pass.";
    Status = 23: status::StatusRequest, "The status of the server.";
    Stop = 25: stop::Stop, "Stop the server.";
    Join = 26: join::Join, "A stream joins a pass.";
    Depart = 27: depart::Depart, "A worker departs.";
    AllReduce = 28: all_reduce::AllReduce, "Reduce the numbers of all workers.";
    Shrink = 29: shrink::ShrinkRequest, "Decay rows and remove those with low scores.";
    Cut = 30: cut::Cut, "Take a consistent snapshot on all servers.";
    Save = 31: save::Save, "Write a checkpoint.";
    Load = 32: load::LoadRequest, "Load tables from a checkpoint.";
    AllToAll = 33: all_to_all::AllToAll, "Exchange parts between all workers.";
    Inspect = 34: inspect::Inspect, "What a worker has to know before it enters.";
    Enter = 35: enter::EnterRequest, "A worker enters the job.";
    Action = 36: action::ActionRequest, "A worker's script begins or completes an action.";
    GeoPositions = 37: geo_positions::GeoPositions, "GEO: the servers have all progress up to these steps.";
    Committed = 38: committed::Committed, "A checkpoint was committed.";
    Recall = 39: recall::Recall, "Make all workers restart.";
    GeoFlush = 40: geo_flush::GeoFlush, "GEO: ask workers to send their unsent progress.";
    GeoFlushDone = 41: geo_flush_done::GeoFlushDone, "GEO: the requested flush is done.";
    Scale = 43: scale::Scale, "The scale factor of a measured step.";
    PullChanges = 42: pull_changes::PullChanges, "Pull how dense blocks differ from a worker's copy.";
    PutRows = 44: put_rows::PutRows, "Put rows that do not exist yet.";
    ListKeys = 45: list_keys::ListKeys, "List the keys of a table.";
}

impl Kind {
    /// Decodes the kind in a frame.
    pub fn from_number(kind: u16) -> Result<Self> {
        Kind::ALL.iter().copied().find(|known| *known as u16 == kind).ok_or(Error::UnknownKind { kind })
    }
}

impl State {
    /// Handles one request of an authenticated worker, unless a newer incarnation of it was admitted: from then on nothing that
    /// an older incarnation sent has an effect, not even a request that was being read at that moment.
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

    /// Handles one request of a worker in this process, which has no older incarnations.
    pub fn handle(&self, worker: u32, kind: Kind, payload: Payload) -> Outcome {
        let caller = Caller { rank: worker, incarnation: None };
        apply(self, caller, kind, payload).unwrap_or_else(|error| Outcome::Now(Err(error)))
    }
}

/// Encodes a value as JSON.
fn to_json(value: &impl Serialize, what: &'static str) -> Result<Payload> {
    let mut payload = Payload::new();
    payload.put(&serde_json::to_vec(value).map_err(|_| Error::Damaged { what })?);
    Ok(payload)
}

/// Decodes a value from JSON.
fn from_json<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|_| Error::Damaged { what })
}

/// An immediate reply.
fn now(answer: Payload) -> Result<Outcome> {
    Ok(Outcome::Now(Ok(answer)))
}

/// An immediate reply without content.
fn done() -> Result<Outcome> {
    now(Payload::new())
}
