//! The servers of a job as one worker uses them: links, training mode, and the one communicator of the worker.
//!
//! All programs of a worker share its tables: the first one that trains creates them, and those that evaluate read them. What
//! concerns the job and not its tables (barriers, all-reduces, server status, stopping the servers) works before any table
//! exists. Local training without servers has no cluster.

mod entering;
mod saving;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use openfleet_core::placement::Buckets;
use openfleet_core::strategy::Strategy;
use openfleet_table::{Accessor, Admission, DenseSpec, Shrunk, SparseSpec};
use parking_lot::{Mutex, MutexGuard};

pub use entering::ScriptAction;
pub use saving::{LoadOptions, SaveOptions, fresh_save_id};

use self::entering::Entry;
use crate::client::Link;
use crate::communicator::{
    Communicator, Remote, Streams, TableSubset, Worker, depart_from, for_mode, leave_implicit, status_of, wait_all,
};
use crate::error::{Error, Result};
use crate::request::all_reduce::{self, AllReduce};
use crate::request::all_to_all::{self, AllToAll};
use crate::request::barrier::Barrier;
use crate::request::recall::Recall;
use crate::request::shrink::{self, ShrinkRequest};
use crate::request::stop::Stop;
use crate::request::{Numbered, Request};
use crate::server::{ActionKind, Reduce, Shrink, Status};

/// The servers of a job, as one worker sees them.
pub struct Cluster {
    links: Vec<Link>,
    worker: Worker,
    strategy: Strategy,
    connected: Mutex<Option<Connected>>,
    /// The program's own state that came with the checkpoint the servers resumed from, until it is taken.
    resumed: Mutex<Vec<u8>>,
    /// What the servers told this process when it entered the job.
    entry: Mutex<Option<Arc<Entry>>>,
    /// The number of this worker's next collective. Locked while one runs.
    collectives: Mutex<u64>,
    /// The program that was the last to step on the tables.
    turn: AtomicU64,
    closed: AtomicBool,
    /// The name of the job, if it has one: it is written into checkpoints.
    job: Option<String>,
    /// Tells whether this process would be restarted and resume if it were asked to stop.
    restarts: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

/// The number of a collective in progress.
struct Number<'a>(MutexGuard<'a, u64>);

impl Number<'_> {
    /// The collective has ended, successfully or not. One that timed out because workers were missing has not: its number is
    /// used again.
    fn ended<T>(mut self, outcome: &Result<T>) {
        if !matches!(outcome, Err(Error::Missed { .. } | Error::Deadline { .. })) {
            *self.0 += 1;
        }
    }
}

struct Connected {
    sparse: Vec<(String, SparseSpec)>,
    dense: Vec<(String, DenseSpec)>,
    communicator: Arc<dyn Communicator>,
}

impl Connected {
    /// A communicator for all tables, or for a subset if the program names fewer.
    fn part(&self, sparse: &[&str], dense: &[&str]) -> Result<Arc<dyn Communicator>> {
        let (known_sparse, known_dense): (Vec<_>, Vec<_>) =
            (names(&self.sparse).collect(), names(&self.dense).collect());
        if known_sparse == sparse && known_dense == dense {
            return Ok(self.communicator.clone());
        }
        let numbers = |known: &[&str], wanted: &[&str]| -> Option<Vec<usize>> {
            wanted.iter().map(|name| known.iter().position(|known| known == name)).collect()
        };
        match (numbers(&known_sparse, sparse), numbers(&known_dense, dense)) {
            (Some(sparse), Some(dense)) => Ok(Arc::new(TableSubset::new(self.communicator.clone(), sparse, dense))),
            _ => Err(Error::TableMismatch {
                table: "all".into(),
                existing: [known_sparse, known_dense].concat().join(", "),
                wanted: [sparse, dense].concat().join(", "),
            }),
        }
    }
}

fn names<T>(named: &[(String, T)]) -> impl Iterator<Item = &str> {
    named.iter().map(|(name, _)| name.as_str())
}

impl Cluster {
    /// A worker with links to all servers, in the order every worker has them.
    pub fn new(links: Vec<Link>, worker: Worker, strategy: Strategy) -> Self {
        let (connected, resumed, entry, collectives) = Default::default();
        Cluster {
            links,
            worker,
            strategy,
            connected,
            resumed,
            entry,
            collectives,
            turn: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            job: None,
            restarts: None,
        }
    }

    /// Names the job; the name is written into every checkpoint.
    #[must_use]
    pub fn named(self, job: impl Into<String>) -> Self {
        Cluster { job: Some(job.into()), ..self }
    }

    /// Sets the function that tells whether this process would be restarted and resume if it were asked to stop. It is called
    /// at that moment.
    #[must_use]
    pub fn restarts_if(self, restarts: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Cluster { restarts: Some(Box::new(restarts)), ..self }
    }

    /// Whether this process, if it is asked to stop now, is restarted and resumes. If so, it must not depart from the job.
    pub fn will_restart(&self) -> bool {
        self.restarts.as_ref().is_some_and(|restarts| restarts())
    }

    /// Rank, worker count and thread count of this worker.
    pub fn worker(&self) -> Worker {
        self.worker
    }

    /// The communicator for a program's tables. The first call creates the tables on the servers; later calls must name the
    /// same tables or a subset of them.
    ///
    /// # Errors
    ///
    /// If the tables differ from those on the servers, or a table cannot be used in geo mode.
    pub fn communicator(
        &self,
        sparse: &[(String, SparseSpec)],
        dense: &[(String, DenseSpec, Vec<f32>)],
    ) -> Result<Arc<dyn Communicator>> {
        let mut connected = self.connected.lock();
        if let Some(existing) = connected.as_ref() {
            let dense: Vec<&str> = dense.iter().map(|(name, ..)| name.as_str()).collect();
            return existing.part(&names(sparse).collect::<Vec<_>>(), &dense);
        }
        let (mode, rule) = (self.strategy.mode(), self.strategy.placement());
        if self.strategy.trains_on_copies() {
            sparse.iter().try_for_each(|(name, spec)| check_for_geo(name, spec))?;
        }
        let entry = self.enter()?;
        let remote = Remote::create(self.links.clone(), self.worker, mode, rule, sparse, dense)?;
        let remote = remote.with_streams(entry.streams.clone());
        *self.resumed.lock() = remote.take_states();
        let communicator: Arc<dyn Communicator> = for_mode(remote, &self.strategy, sparse, dense)?.into();
        let dense = dense.iter().map(|(name, spec, _)| (name.clone(), spec.clone())).collect();
        *connected = Some(Connected { sparse: sparse.to_vec(), dense, communicator: communicator.clone() });
        Ok(communicator)
    }

    /// Tells that a compiled program is about to step. Returns whether it was also the last one that did: if another program
    /// stepped in between, this one's copies of dense values are stale.
    pub fn is_next_turn_of(&self, program: u64) -> bool {
        self.turn.swap(program, Ordering::Relaxed) == program
    }

    /// Marks every program's copies of dense values as stale.
    fn values_were_replaced(&self) {
        self.turn.store(0, Ordering::Relaxed);
    }

    /// Whether the tables of a program exist on the servers.
    pub fn is_connected(&self) -> bool {
        self.connected.lock().is_some()
    }

    /// The spec of a sparse table on the servers.
    pub fn sparse_spec(&self, name: &str) -> Option<SparseSpec> {
        let connected = self.connected.lock();
        connected.as_ref()?.sparse.iter().find(|(known, _)| known == name).map(|(_, spec)| spec.clone())
    }

    /// The spec of a dense table on the servers.
    pub fn dense_spec(&self, name: &str) -> Option<DenseSpec> {
        let connected = self.connected.lock();
        connected.as_ref()?.dense.iter().find(|(known, _)| known == name).map(|(_, spec)| spec.clone())
    }

    /// Waits until every worker that has not departed has reached the barrier. All workers must call barriers and all-reduces
    /// in the same order.
    pub fn barrier(&self) -> Result<()> {
        self.arrive(|number| Barrier { number, workers: self.worker.count }, |_| Ok(()))
    }

    /// Reduces the values of all workers that have not departed, element by element. Every worker passes the same number of
    /// values and gets bit-identical results, whatever the order of arrival. After an error `values` is unchanged.
    pub fn all_reduce(&self, op: Reduce, values: &mut [f64]) -> Result<()> {
        let mine = values.to_vec();
        let request = |number| AllReduce { number, workers: self.worker.count, op, values: mine };
        self.arrive(request, |answer| all_reduce::decode(answer, values))
    }

    /// Sends `(rank, bytes)` parts to other workers, each rank at most once, and returns the parts that all workers have for
    /// this one, in order of rank. Departed workers take no part, and a part for one of them is an error.
    ///
    /// Each server relays the parts of its share of the workers, so it holds the bytes of all workers divided by the number of
    /// servers: send a few megabytes per call.
    pub fn all_to_all(&self, parts: &[(u32, Vec<u8>)]) -> Result<Vec<(u32, Vec<u8>)>> {
        let servers = self.links.len();
        let number = self.next_collective(&self.links)?;
        let outcome = self.exchange_parts(parts, servers, *number.0);
        number.ended(&outcome);
        outcome
    }

    fn exchange_parts(&self, parts: &[(u32, Vec<u8>)], servers: usize, number: u64) -> Result<Vec<(u32, Vec<u8>)>> {
        let asked = self.links.iter().enumerate().map(|(server, link)| {
            let theirs = parts.iter().filter(|(to, _)| *to as usize % servers == server);
            let parts = theirs.map(|(to, part)| (*to, part.clone())).collect();
            link.send_patiently(&AllToAll { number, workers: self.worker.count, parts })
        });
        let asked: Vec<_> = asked.collect::<Result<_>>()?;
        let mut mail = Vec::new();
        for (link, answer) in self.links.iter().zip(asked) {
            let answer = answer.wait().map_err(|error| missed(std::slice::from_ref(link), AllToAll::NAME, error))?;
            mail.extend(all_to_all::decode(answer.bytes())?.into_iter().map(|(from, part)| (from, part.to_vec())));
        }
        Ok(mail)
    }

    /// Runs a collective that one server is enough for: the first.
    fn arrive<R: Numbered>(
        &self,
        request: impl FnOnce(u64) -> R,
        decode: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let link = &self.links[..1];
        let number = self.next_collective(link)?;
        let request = request(*number.0);
        let arrive = || {
            let answer = link[0].send_patiently(&request)?.wait().map_err(|error| missed(link, R::NAME, error))?;
            decode(answer.bytes())
        };
        let outcome = arrive();
        number.ended(&outcome);
        outcome
    }

    /// The number of the next collective on these servers. Ends the implicit pass (steps outside of a dataset), so that no
    /// other worker waits for this one at a step while it waits for them here. A worker that made no step ends it too: the
    /// others may have.
    fn next_collective(&self, links: &[Link]) -> Result<Number<'_>> {
        Buckets::new(self.links.len())?;
        let entry = self.enter()?;
        self.finish_implicit(&entry.streams, true)?;
        // Another worker may have loaded a checkpoint.
        self.values_were_replaced();
        let number = self.collectives.lock();
        if *number < entry.collectives {
            // The job has already completed this collective. If its result was too large to record, all workers have to repeat
            // it.
            let recall = Recall { number: *number };
            let asked = links.iter().map(|link| link.send(&recall)).collect::<Result<_>>()?;
            wait_all(asked)?;
        }
        Ok(Number(number))
    }

    /// Ends the implicit pass that steps outside of a dataset form; with `also_empty` also if this worker made no step in it.
    fn finish_implicit(&self, streams: &Streams, also_empty: bool) -> Result<()> {
        let communicator = self.connected.lock().as_ref().map(|connected| connected.communicator.clone());
        match communicator {
            Some(communicator) => communicator.finish_implicit(also_empty),
            None => leave_implicit(&self.links, streams, also_empty),
        }
    }

    /// Decays the rows of one sparse table, or of all, by their accessors' rules and removes rows with low scores. Returns how
    /// many were removed on all servers. One worker calls this for the job, and training may continue meanwhile. Queued gradients
    /// of this worker are sent first, so that their rows count as seen. A restarted worker does not repeat it.
    pub fn shrink(&self, shrink: &Shrink) -> Result<Shrunk> {
        if self.strategy.trains_on_copies() && self.can_remove(shrink) {
            return Err(Error::NotInGeo { what: "removing rows".into() });
        }
        let begun = self.begin_action(ActionKind::Shrink, format!("{shrink:?}"))?;
        if let Some([by_score, by_unseen_days, by_age]) = begun.recorded::<[usize; 3]>() {
            return Ok(Shrunk { by_score, by_unseen_days, by_age });
        }
        let communicator = self.connected.lock().as_ref().map(|connected| connected.communicator.clone());
        communicator.map_or(Ok(()), |communicator| communicator.flush())?;
        let request = ShrinkRequest { id: self.action_id(&begun), shrink: shrink.clone() };
        let asked = self.links.iter().map(|link| link.send_patiently(&request)).collect::<Result<_>>()?;
        let mut total = Shrunk::default();
        for answer in wait_all(asked)? {
            total.merge(shrink::decode(answer.bytes())?);
        }
        let counts = [total.by_score, total.by_unseen_days, total.by_age];
        self.complete_action(begun, &counts, Vec::new())?;
        Ok(total)
    }

    fn can_remove(&self, shrink: &Shrink) -> bool {
        let connected = self.connected.lock();
        let mut tables = connected.iter().flat_map(|connected| &connected.sparse);
        shrink.max_age != u32::MAX || tables.any(|(_, spec)| spec.accessor != Accessor::Plain)
    }

    /// The status of every server, in order.
    pub fn status(&self) -> Result<Vec<Status>> {
        status_of(&self.links)
    }

    /// Stops all servers, even if workers still use them.
    pub fn stop_servers(&self) -> Result<()> {
        let asked = self.links.iter().map(|link| link.send(&Stop)).collect::<Result<_>>()?;
        wait_all(asked).map(drop)
    }

    /// Bytes sent to all servers and received from them.
    pub fn traffic(&self) -> (u64, u64) {
        let sent = self.links.iter().map(|link| link.traffic().sent.load(Ordering::Relaxed)).sum();
        let received = self.links.iter().map(|link| link.traffic().received.load(Ordering::Relaxed)).sum();
        (sent, received)
    }

    /// Shuts this worker down: sends what is queued and tells the servers that the worker departs, whether it trained or not.
    /// The servers stop when all workers have departed. Idempotent.
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

/// In geo mode, a row that a server removes would come back as a difference from a worker that still has a copy. (Admission by
/// the key alone is fine: it gives the same result everywhere.) And a server that rounds the sums of differences to 16 bits would
/// move away from a worker that is alone in using a row, which never reads the sums.
fn check_for_geo(table: &str, spec: &SparseSpec) -> Result<()> {
    let what = match spec.admission {
        _ if spec.capacity.is_some() => "a row limit",
        _ if !spec.storage.is_float32() => "rows stored as `bfloat16`",
        Admission::Count(count) if count > 1 => "admission by occurrence count",
        Admission::ShowClick { .. } => "admission by shows and clicks",
        _ => return Ok(()),
    };
    Err(Error::NotInGeo { what: format!("table `{table}`: {what}") })
}

/// Names the missing workers if the collective timed out because of them.
fn missed(link: &[Link], what: &'static str, error: Error) -> Error {
    let Error::Deadline { waited, .. } = error else { return error };
    match status_of(link).as_deref() {
        Ok([status]) if !status.workers_awaited.is_empty() => {
            Error::Missed { what, workers: status.workers_awaited.clone(), waited }
        }
        _ => error,
    }
}
