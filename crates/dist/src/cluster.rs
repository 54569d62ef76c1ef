//! A worker's servers: who they are, in which mode it trains with them, and the one communicator that does.
//!
//! Programs of a worker share its tables: the first one that trains makes them, and those that evaluate read them. What
//! concerns the job and not its tables (barriers, all-reduces, how the servers stand, ending them) works before there are
//! any. The embedded default has no cluster.

mod saving;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openfleet_core::placement::Buckets;
use openfleet_core::strategy::Strategy;
use openfleet_table::{DenseSpec, Shrunk, SparseSpec};
use parking_lot::Mutex;

pub use saving::{LoadOptions, SaveOptions, fresh_save_id};

use crate::client::Link;
use crate::communicator::{Communicator, Remote, Worker, depart_from, for_mode, status_of, wait_all};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::handshake::fresh_nonce;
use crate::request::all_reduce::{self, Reduce};
use crate::request::shrink::{self, Shrink};
use crate::request::status::Status;
use crate::request::{Kind, barrier};

/// The servers of a job, as one worker sees them.
pub struct Cluster {
    links: Vec<Link>,
    worker: Worker,
    strategy: Strategy,
    connected: Mutex<Option<Connected>>,
    /// The number of this worker's next collective, once the servers have said where it stands. Locked while one runs.
    collectives: Mutex<Option<u64>>,
    closed: AtomicBool,
}

struct Connected {
    names: Vec<String>,
    communicator: Arc<dyn Communicator>,
}

impl Cluster {
    /// A worker with links to all servers, in the order every worker has them.
    pub fn new(links: Vec<Link>, worker: Worker, strategy: Strategy) -> Self {
        let (connected, collectives, closed) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Cluster { links, worker, strategy, connected, collectives, closed }
    }

    /// Which worker this is.
    pub fn worker(&self) -> Worker {
        self.worker
    }

    /// The communicator for a program's tables. The first program's request makes them on the servers; later ones must
    /// name the same tables in the same order.
    pub fn communicator(
        &self,
        sparse: &[(String, SparseSpec)],
        dense: &[(String, DenseSpec, Vec<f32>)],
    ) -> Result<Arc<dyn Communicator>> {
        let names: Vec<String> =
            sparse.iter().map(|(name, _)| name).chain(dense.iter().map(|(name, ..)| name)).cloned().collect();
        let mut connected = self.connected.lock();
        if let Some(existing) = connected.as_ref() {
            if existing.names == names {
                return Ok(existing.communicator.clone());
            }
            return Err(Error::TableMismatch {
                table: "all".into(),
                existing: existing.names.join(", "),
                wanted: names.join(", "),
            });
        }
        let (mode, rule) = (self.strategy.mode(), self.strategy.placement());
        let remote = Remote::create(self.links.clone(), self.worker, mode, rule, sparse, dense)?;
        let communicator: Arc<dyn Communicator> = for_mode(remote, &self.strategy, sparse, dense)?.into();
        *connected = Some(Connected { names, communicator: communicator.clone() });
        Ok(communicator)
    }

    /// Waits until every worker that has not left has come to a barrier too. Workers call their barriers and all-reduces in
    /// the same order.
    pub fn barrier(&self) -> Result<()> {
        let encode = |payload: &mut Payload, number| barrier::encode(payload, number, self.worker.count);
        self.meet(Kind::Barrier, encode, |_| Ok(()))
    }

    /// Makes the values of all workers that have not left one: position by position their sum, say. Every worker brings as
    /// many and gets the same, to the bit, whoever comes first. After an error the values are as they were.
    pub fn all_reduce(&self, op: Reduce, values: &mut [f64]) -> Result<()> {
        let mine = values.to_vec();
        let encode = |payload: &mut Payload, number| all_reduce::encode(payload, number, self.worker.count, op, &mine);
        self.meet(Kind::AllReduce, encode, |answer| all_reduce::decode(answer, values))
    }

    /// One server is enough to meet at: the first.
    fn meet(
        &self,
        kind: Kind,
        encode: impl FnOnce(&mut Payload, u64),
        decode: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        Buckets::new(self.links.len())?;
        let link = &self.links[..1];
        let mut next = self.collectives.lock();
        // A worker that was started again goes on where the others are. So does one whose last collective failed.
        let number = match next.take() {
            Some(number) => number,
            None => status_of(link)?.first().map_or(0, |status| status.collectives),
        };
        let mut payload = Payload::new();
        encode(&mut payload, number);
        let answer = link[0].ask_patiently(kind, payload).wait().map_err(|error| missed(link, kind, error))?;
        decode(answer.bytes())?;
        *next = Some(number + 1);
        Ok(())
    }

    /// Lets the rows of one sparse table or of all fade as their accessors say, and removes those that no longer earn their
    /// place; says how many, over all servers. One worker does this for the job. Training may go on meanwhile.
    pub fn shrink(&self, shrink: &Shrink) -> Result<Shrunk> {
        let id = fresh_nonce();
        let asked = self.links.iter().map(|link| {
            let mut payload = Payload::new();
            shrink::encode(&mut payload, id, shrink)?;
            Ok(link.ask_patiently(Kind::Shrink, payload))
        });
        let mut total = Shrunk::default();
        for answer in wait_all(asked.collect::<Result<_>>()?)? {
            total.merge(shrink::decode(answer.bytes())?);
        }
        Ok(total)
    }

    /// How every server stands, in order.
    pub fn status(&self) -> Result<Vec<Status>> {
        status_of(&self.links)
    }

    /// Ends all servers, whoever still needs them.
    pub fn stop_servers(&self) -> Result<()> {
        let asked = self.links.iter().map(|link| link.ask(Kind::Stop, Payload::new()));
        wait_all(asked.collect())?;
        Ok(())
    }

    /// Bytes that went to all servers and came from them.
    pub fn traffic(&self) -> (u64, u64) {
        let sent = self.links.iter().map(|link| link.traffic().sent.load(Ordering::Relaxed)).sum();
        let received = self.links.iter().map(|link| link.traffic().received.load(Ordering::Relaxed)).sum();
        (sent, received)
    }

    /// This worker is done: what is queued is sent, and the servers hear that it leaves, whether it trained or not. They end
    /// when all workers have left. Closing again does nothing.
    pub fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        match self.connected.lock().take() {
            Some(connected) => connected.communicator.close(),
            None => depart_from(&self.links, self.worker),
        }
    }
}

/// Who did not come, if that is why there was no answer.
fn missed(link: &[Link], kind: Kind, error: Error) -> Error {
    let Error::Deadline { waited, .. } = error else { return error };
    match status_of(link).as_deref() {
        Ok([status]) if !status.workers_awaited.is_empty() => {
            Error::Missed { what: kind.name(), workers: status.workers_awaited.clone(), waited }
        }
        _ => error,
    }
}
