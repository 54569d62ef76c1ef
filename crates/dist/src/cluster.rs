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
use parking_lot::{Mutex, MutexGuard};

pub use saving::{LoadOptions, SaveOptions, fresh_save_id};

use crate::client::Link;
use crate::communicator::{Communicator, Part, Remote, Worker, depart_from, for_mode, status_of, wait_all};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::handshake::fresh_nonce;
use crate::request::all_reduce::{self, Reduce};
use crate::request::all_to_all;
use crate::request::shrink::{self, Shrink};
use crate::request::status::Status;
use crate::request::{Kind, barrier};

/// The servers of a job, as one worker sees them.
pub struct Cluster {
    links: Vec<Link>,
    worker: Worker,
    strategy: Strategy,
    connected: Mutex<Option<Connected>>,
    /// What the program kept beside its tables, where the servers took those from a checkpoint; until somebody wants it.
    resumed: Mutex<Vec<u8>>,
    /// The number of this worker's next collective, once the servers have said where it stands. Locked while one runs.
    collectives: Mutex<Option<u64>>,
    closed: AtomicBool,
}

/// The number of a collective that is under way; the next has it too, unless this one is done.
struct Number<'a>(u64, MutexGuard<'a, Option<u64>>);

impl Number<'_> {
    fn done(mut self) {
        *self.1 = Some(self.0 + 1);
    }
}

struct Connected {
    sparse: Vec<String>,
    dense: Vec<String>,
    communicator: Arc<dyn Communicator>,
}

impl Connected {
    /// All tables, or some of them for a program that names fewer.
    fn part(&self, sparse: &[String], dense: &[String]) -> Result<Arc<dyn Communicator>> {
        if self.sparse == sparse && self.dense == dense {
            return Ok(self.communicator.clone());
        }
        let numbers = |known: &[String], wanted: &[String]| -> Option<Vec<usize>> {
            wanted.iter().map(|name| known.iter().position(|known| known == name)).collect()
        };
        match (numbers(&self.sparse, sparse), numbers(&self.dense, dense)) {
            (Some(sparse), Some(dense)) => Ok(Arc::new(Part::new(self.communicator.clone(), sparse, dense))),
            _ => Err(Error::TableMismatch {
                table: "all".into(),
                existing: [&self.sparse[..], &self.dense].concat().join(", "),
                wanted: [sparse, dense].concat().join(", "),
            }),
        }
    }
}

impl Cluster {
    /// A worker with links to all servers, in the order every worker has them.
    pub fn new(links: Vec<Link>, worker: Worker, strategy: Strategy) -> Self {
        let (connected, collectives, closed) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Cluster { links, worker, strategy, connected, resumed: Mutex::default(), collectives, closed }
    }

    /// Which worker this is.
    pub fn worker(&self) -> Worker {
        self.worker
    }

    /// The communicator for a program's tables. The first program's request makes them on the servers; later ones
    /// name the same tables, or some of them.
    pub fn communicator(
        &self,
        sparse: &[(String, SparseSpec)],
        dense: &[(String, DenseSpec, Vec<f32>)],
    ) -> Result<Arc<dyn Communicator>> {
        let sparse_names: Vec<String> = sparse.iter().map(|(name, _)| name.clone()).collect();
        let dense_names: Vec<String> = dense.iter().map(|(name, ..)| name.clone()).collect();
        let mut connected = self.connected.lock();
        if let Some(existing) = connected.as_ref() {
            return existing.part(&sparse_names, &dense_names);
        }
        let (mode, rule) = (self.strategy.mode(), self.strategy.placement());
        let remote = Remote::create(self.links.clone(), self.worker, mode, rule, sparse, dense)?;
        *self.resumed.lock() = remote.take_states();
        let communicator: Arc<dyn Communicator> = for_mode(remote, &self.strategy, sparse, dense)?.into();
        *connected = Some(Connected { sparse: sparse_names, dense: dense_names, communicator: communicator.clone() });
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

    /// Gives every worker what this one has for it, `(rank, bytes)` with each rank once, and gets what all of them have for
    /// this one, in the order of ranks. Workers that have left take no part, and nothing may be for them.
    ///
    /// Each server passes on what is for its share of the workers, so what a server holds meanwhile is what all workers
    /// bring divided by the number of servers: bring a few megabytes at a time.
    pub fn all_to_all(&self, parts: &[(u32, Vec<u8>)]) -> Result<Vec<(u32, Vec<u8>)>> {
        let servers = self.links.len();
        let number = self.next_collective()?;
        let asked = self.links.iter().enumerate().map(|(server, link)| {
            let theirs = parts.iter().filter(|(to, _)| *to as usize % servers == server);
            let mut payload = Payload::new();
            all_to_all::encode(&mut payload, number.0, self.worker.count, theirs.map(|(to, part)| (*to, &part[..])));
            link.ask_patiently(Kind::AllToAll, payload)
        });
        let asked: Vec<_> = asked.collect();
        let mut mail = Vec::new();
        for (link, answer) in self.links.iter().zip(asked) {
            let answer = answer.wait().map_err(|error| missed(std::slice::from_ref(link), Kind::AllToAll, error))?;
            mail.extend(all_to_all::decode(answer.bytes())?.into_iter().map(|(from, part)| (from, part.to_vec())));
        }
        number.done();
        Ok(mail)
    }

    /// One server is enough to meet at: the first.
    fn meet(
        &self,
        kind: Kind,
        encode: impl FnOnce(&mut Payload, u64),
        decode: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let number = self.next_collective()?;
        let link = &self.links[..1];
        let mut payload = Payload::new();
        encode(&mut payload, number.0);
        let answer = link[0].ask_patiently(kind, payload).wait().map_err(|error| missed(link, kind, error))?;
        decode(answer.bytes())?;
        number.done();
        Ok(())
    }

    /// The first server counts; the others take the workers' word for the number.
    fn next_collective(&self) -> Result<Number<'_>> {
        Buckets::new(self.links.len())?;
        let mut next = self.collectives.lock();
        // A worker that was started again goes on where the others are. So does one whose last collective failed.
        let number = match next.take() {
            Some(number) => number,
            None => status_of(&self.links[..1])?.first().map_or(0, |status| status.collectives),
        };
        Ok(Number(number, next))
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
