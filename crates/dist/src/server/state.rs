//! What a server keeps, and what each request does to it. No sockets, no clock: driven by calls.
//!
//! Lock order: incarnation of a worker, then shrinks, then collectives or groups (never both), then the gate of a cut, then ledger of a stream, then
//! tables. Tables lock themselves, a shard or a block at a time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openfleet_core::WorkId;
use openfleet_core::strategy::Mode;
use openfleet_core::topology::Incarnation;
use openfleet_table::ledger::{Applied, Ledger};
use openfleet_table::sparse::Scratch;
use openfleet_table::{DenseTable, Missing, Row, Shrunk, SparseTable};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use super::collective::{Brought, Collectives, check_worker};
use super::copies::Copies;
use super::group::{Group, values_wanted};
use super::saving::{Restored, Saving};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::handshake::Nonce;
use crate::request::all_reduce::Collective;
use crate::request::create_tables::{Created, Tables};
use crate::request::push::{PushView, PushedStage};
use crate::request::shrink::Shrink;
use crate::request::status::Status;
use crate::request::{self, Kind};

/// An answer, now or when others have done their part.
pub enum Outcome {
    /// Here it is.
    Now(Result<Payload>),
    /// It will come.
    Later(oneshot::Receiver<Result<Payload>>),
}

/// A sparse table with the name people know it by.
pub struct NamedSparse {
    pub(super) name: String,
    /// The rows.
    pub table: Arc<SparseTable>,
}

/// A dense block with the name people know it by.
pub struct NamedDense {
    pub(super) name: String,
    /// The values.
    pub table: DenseTable,
}

impl NamedSparse {
    /// What the table said, with its name.
    pub fn error(&self, action: &'static str, source: openfleet_table::Error) -> Error {
        Error::Table { action, table: self.name.clone(), source }
    }

    /// Fails unless the worker thinks of rows of the same size.
    pub fn check_dim(&self, dim: u32) -> Result<()> {
        if self.table.dim() == dim as usize {
            return Ok(());
        }
        let what = format!("a row of table `{}`", self.name);
        Err(Error::Length { what, expected: self.table.dim(), got: dim as usize })
    }
}

impl NamedDense {
    /// What the block said, with its name.
    pub fn error(&self, action: &'static str, source: openfleet_table::Error) -> Error {
        Error::Table { action, table: self.name.clone(), source }
    }
}

/// What a server keeps.
pub struct State {
    pub(super) tables: RwLock<Kept>,
    /// Held while tables are made, which may take long where they come from a checkpoint.
    making: Mutex<()>,
    pub(super) saving: Saving,
    /// One lock a stream: a repeat waits until the first is applied or refused.
    pub(super) ledgers: Mutex<HashMap<u32, Arc<Mutex<Stream>>>>,
    /// Streams that step together; none where nobody waits.
    pub(super) groups: Mutex<Vec<Group>>,
    collectives: Mutex<Collectives>,
    /// The last shrinks and what came of them, for repeats. Locked while one runs: a repeat waits for the first.
    pub(super) shrinks: Mutex<VecDeque<(Nonce, Shrunk)>>,
    /// Newest incarnation of each worker that said hello. Read-locked while a request of the worker is answered, so that a
    /// newer one is let in between two requests and not during one.
    incarnations: Mutex<BTreeMap<u32, Arc<RwLock<Incarnation>>>>,
    connected: Mutex<BTreeMap<u32, u32>>,
    scratches: Mutex<Vec<Scratch>>,
    repeats: AtomicU64,
    /// Requests to make tables so far.
    sessions: AtomicU64,
    stopped: watch::Sender<bool>,
}

#[derive(Default)]
pub(super) struct Kept {
    pub(super) description: Option<Tables>,
    pub(super) sparse: Vec<Arc<NamedSparse>>,
    pub(super) dense: Vec<Arc<NamedDense>>,
    /// Where workers train on copies: what each has yet to hear of.
    pub(super) copies: Option<Arc<Copies>>,
}

/// What is known of a stream.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) ledger: Ledger,
    /// GEO: the answer to the last exchange, for a repeat.
    last_answer: Option<(u64, Payload)>,
}

/// Shrinks whose repeats are known as such; workers ask for one after the other.
const KEPT_SHRINKS: usize = 64;

impl Default for State {
    fn default() -> Self {
        State::new()
    }
}

impl State {
    /// A server without tables.
    pub fn new() -> Self {
        State {
            tables: RwLock::default(),
            making: Mutex::default(),
            saving: Saving::default(),
            ledgers: Mutex::default(),
            groups: Mutex::default(),
            collectives: Mutex::default(),
            shrinks: Mutex::default(),
            incarnations: Mutex::default(),
            connected: Mutex::default(),
            scratches: Mutex::default(),
            repeats: AtomicU64::new(0),
            sessions: AtomicU64::new(0),
            stopped: watch::channel(false).0,
        }
    }

    /// Answers one request of a worker that said hello, unless a newer incarnation of it was let in: from then on nothing
    /// that an older one sent changes anything, not even what was being read when the newer came.
    pub fn handle_as(&self, rank: u32, incarnation: Incarnation, kind: Kind, payload: Payload) -> Outcome {
        let newest = self.incarnations.lock().get(&rank).cloned();
        let newest = newest.as_ref().map(|newest| newest.read());
        if newest.as_deref() != Some(&incarnation) {
            return Outcome::Now(Err(Error::Replaced { rank, incarnation }));
        }
        if kind.is_slow() {
            // What takes long is known by its own number, and must not keep a newer incarnation out.
            drop(newest);
        }
        self.handle(rank, kind, payload)
    }

    /// Answers one request of a worker in this process, which has no older incarnations.
    pub fn handle(&self, worker: u32, kind: Kind, payload: Payload) -> Outcome {
        let bytes = payload.bytes();
        let answer = match kind {
            Kind::Heartbeat => Ok(Payload::new()),
            Kind::CreateTables => request::create_tables::apply(self, bytes),
            Kind::PullSparse => request::pull_sparse::apply(self, worker, bytes),
            Kind::PullDense => request::pull_dense::apply(self, bytes),
            Kind::Leave => request::leave::apply(self, worker, bytes),
            Kind::Depart => request::depart::apply(self, worker, bytes),
            Kind::Status => request::status::apply(self),
            Kind::Shrink => request::shrink::apply(self, bytes),
            Kind::Cut => request::cut::apply(self, bytes),
            Kind::Save => request::save::apply(self, bytes),
            Kind::Load => request::load::apply(self, bytes),
            Kind::Stop => request::stop::apply(self),
            Kind::Join => match request::join::apply(self, worker, bytes) {
                Ok(outcome) => return outcome,
                Err(error) => Err(error),
            },
            Kind::Barrier => match request::barrier::apply(self, worker, bytes) {
                Ok(outcome) => return outcome,
                Err(error) => Err(error),
            },
            Kind::AllReduce => match request::all_reduce::apply(self, worker, bytes) {
                Ok(outcome) => return outcome,
                Err(error) => Err(error),
            },
            Kind::AllToAll => match request::all_to_all::apply(self, worker, bytes) {
                Ok(outcome) => return outcome,
                Err(error) => Err(error),
            },
            Kind::ExchangeGeo => match request::exchange_geo::apply(self, worker, payload) {
                Ok(outcome) => return outcome,
                Err(error) => Err(error),
            },
            Kind::Push => match self.push(worker, payload) {
                Ok(outcome) => return outcome,
                Err(error) => Err(error),
            },
        };
        Outcome::Now(answer)
    }

    /// Lets a worker in unless a newer incarnation of it was here.
    pub fn admit(&self, rank: u32, incarnation: Incarnation) -> std::result::Result<(), String> {
        let newest = self.incarnations.lock().entry(rank).or_default().clone();
        let mut newest = newest.write();
        if incarnation < *newest {
            return Err(format!("incarnation {incarnation} of worker {rank} was replaced by incarnation {newest}"));
        }
        *newest = incarnation;
        *self.connected.lock().entry(rank).or_insert(0) += 1;
        Ok(())
    }

    /// A connection of a worker ended.
    pub fn disconnected(&self, rank: u32) {
        let mut connected = self.connected.lock();
        if let Some(count) = connected.get_mut(&rank) {
            *count -= 1;
            if *count == 0 {
                connected.remove(&rank);
            }
        }
    }

    /// Makes tables, or checks that those that exist are the same.
    pub(crate) fn create_tables(&self, tables: Tables, first_values: &[&[f32]]) -> Result<Created> {
        tables.check()?;
        let _making = self.making.lock();
        let session = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(existing) = &self.tables.read().description {
            check_same(existing, &tables)?;
            return Ok(Created { is_new: false, session, states: self.saving.states.lock().clone() });
        }
        let resume = self.saving.resume.lock().clone();
        let Restored { sparse, dense, work } = match &resume {
            Some(load) => self.restore(&tables, load)?,
            None => make(&tables, first_values)?,
        };
        let states = match resume.filter(|_| tables.here.server == 0) {
            Some(load) => self.saved_states(&load.address)?,
            None => Vec::new(),
        };
        self.saving.states.lock().clone_from(&states);
        let mut kept = self.tables.write();
        let copies = if tables.has_rules() { None } else { Some(Arc::new(Copies::new(sparse.len(), tables.workers))) };
        *kept = Kept { copies, sparse, dense, description: None };
        let threads = tables.threads;
        *self.groups.lock() = match tables.mode {
            Mode::Sync | Mode::Hybrid => vec![Group::new(0..tables.streams())],
            Mode::HalfAsync => {
                (0..tables.workers).map(|worker| Group::new(worker * threads..(worker + 1) * threads)).collect()
            }
            Mode::Async | Mode::Geo => Vec::new(),
        };
        if let Some(work) = &work {
            self.restore_work(work, &mut self.groups.lock());
        }
        let left: Vec<u32> = self.collectives.lock().left().iter().copied().collect();
        for worker in left {
            kept.copies.iter().for_each(|copies| copies.leave(worker));
            // They hold nothing yet, so nothing is applied, and nobody is answered.
            self.depart_groups(tables.streams_of(worker));
        }
        kept.description = Some(tables);
        Ok(Created { is_new: true, session, states })
    }

    /// A sparse table by number.
    pub(crate) fn sparse(&self, number: u32) -> Result<Arc<NamedSparse>> {
        let kept = self.tables.read();
        let unknown = || Error::UnknownTable { table: number, count: kept.sparse.len() };
        kept.sparse.get(number as usize).cloned().ok_or_else(unknown)
    }

    /// A dense block by number.
    pub(crate) fn dense(&self, number: u32) -> Result<Arc<NamedDense>> {
        let kept = self.tables.read();
        let unknown = || Error::UnknownTable { table: number, count: kept.dense.len() };
        kept.dense.get(number as usize).cloned().ok_or_else(unknown)
    }

    /// Working memory for one request; give it back.
    pub(crate) fn scratch(&self) -> Scratch {
        self.scratches.lock().pop().unwrap_or_default()
    }

    /// Gives working memory back.
    pub(crate) fn put_scratch(&self, scratch: Scratch) {
        self.scratches.lock().push(scratch);
    }

    fn push(&self, worker: u32, payload: Payload) -> Result<Outcome> {
        let view = PushView::decode(payload.bytes())?;
        let work = view.work;
        self.check_mode(Kind::Push)?;
        self.check_stream(worker, work.stream)?;
        self.check_push(&view)?;
        let mut groups = self.groups.lock();
        // Hybrid's sparse pushes come from streams beyond the groups, and are applied at once.
        if let Some(group) = groups.iter_mut().find(|group| group.has(work.stream)) {
            drop(view);
            if work.first_step < group.step() {
                self.repeats.fetch_add(1, Ordering::Relaxed);
                return Ok(Outcome::Now(group.repeat(self, work.first_step, &payload)));
            }
            return Ok(Outcome::Later(group.contribute(self, work.stream, work.first_step, payload)?));
        }
        drop(groups);
        let passing = self.passing();
        if self.is_held_back(&passing, work) {
            drop(view);
            return Ok(self.hold_back(&passing, worker, work, Kind::Push, payload));
        }
        let stream = self.stream(work.stream);
        let applied = stream.lock().ledger.try_apply_once(work, || self.apply_push(&view))?;
        match applied {
            Applied::Now(()) => {}
            Applied::Before => {
                self.repeats.fetch_add(1, Ordering::Relaxed);
            }
            Applied::Part => {
                return Err(Error::Overlap { stream: work.stream, first: work.first_step, last: work.last_step });
            }
        }
        drop(view);
        drop(passing);
        Ok(Outcome::Now(values_wanted(self, &payload)))
    }

    /// Fails unless everything in a push fits its table. Asked before anything is applied: half a push that was applied
    /// would be applied again when the client repeats it, and a misfit must not spoil the step of a whole group.
    fn check_push(&self, view: &PushView<'_>) -> Result<()> {
        for PushedStage { keys, .. } in &view.stages {
            for (&number, &dim) in keys.tables.iter().zip(keys.dims) {
                self.sparse(number)?.check_dim(dim)?;
            }
        }
        for (number, gradient) in &view.blocks {
            let block = self.dense(*number)?;
            if gradient.len() != block.table.len() {
                let what = format!("a gradient of table `{}`", block.name);
                return Err(Error::Length { what, expected: block.table.len(), got: gradient.len() });
            }
        }
        Ok(())
    }

    /// Fails unless the stream is the worker's: nobody pushes in another's name. Hybrid's sparse streams are numbered after
    /// all others, in the same order. What is kept per stream is so bounded.
    fn check_stream(&self, worker: u32, stream: u32) -> Result<()> {
        let kept = self.tables.read();
        let (count, threads) = kept.description.as_ref().map_or((0, 1), |tables| (tables.streams(), tables.threads));
        if stream >= count.saturating_mul(2) {
            return Err(Error::UnknownStream { stream, count });
        }
        let owner = stream % count / threads;
        if owner == worker { Ok(()) } else { Err(Error::NotYours { worker, stream, owner }) }
    }

    fn apply_push(&self, view: &PushView<'_>) -> Result<()> {
        let mut scratch = self.scratch();
        for PushedStage { keys, gradients, show_click } in &view.stages {
            for ((&number, &dim), gradients) in keys.tables.iter().zip(keys.dims).zip(gradients) {
                let table = self.sparse(number)?;
                table.check_dim(dim)?;
                let pushed = table.table.push_with(keys.keys, gradients, *show_click, &mut scratch);
                pushed.map_err(|e| table.error("pushing to", e))?;
            }
        }
        self.put_scratch(scratch);
        for (number, gradient) in &view.blocks {
            let block = self.dense(*number)?;
            block.table.push(gradient).map_err(|e| block.error("pushing to", e))?;
        }
        Ok(())
    }

    /// Whether an exchange has to wait for a cut; then it is kept.
    pub(crate) fn hold_exchange(
        &self,
        worker: u32,
        work: WorkId,
        payload: Payload,
    ) -> std::result::Result<Outcome, Payload> {
        let passing = self.passing();
        if self.is_held_back(&passing, work) {
            return Ok(self.hold_back(&passing, worker, work, Kind::ExchangeGeo, payload));
        }
        Err(payload)
    }

    /// The newest incarnation of a worker, while it is being answered.
    pub(super) fn newest_incarnation(&self, worker: u32) -> Option<Incarnation> {
        // It is read-locked by whoever answers; somebody may wait for writing.
        self.incarnation_of(worker).map(|newest| *newest.read_recursive())
    }

    pub(super) fn incarnation_of(&self, worker: u32) -> Option<Arc<RwLock<Incarnation>>> {
        self.incarnations.lock().get(&worker).cloned()
    }

    /// GEO: adds differences and tells what others changed.
    pub(crate) fn exchange_geo(&self, worker: u32, view: &PushView<'_>) -> Result<Payload> {
        let copies = self.check_mode(Kind::ExchangeGeo)?;
        // Exchanges are the worker's, not a thread's: it has one stream, of its own rank.
        if view.work.stream != worker {
            return Err(Error::NotYours { worker, stream: view.work.stream, owner: view.work.stream });
        }
        let workers = self.tables.read().description.as_ref().map_or(0, |tables| tables.workers);
        check_worker(worker, workers)?;
        let Some(copies) = copies else { return Err(Error::UnknownTable { table: 0, count: 0 }) };
        self.check_push(view)?;
        let _passing = self.passing();
        let stream = self.stream(view.work.stream);
        let mut stream = stream.lock();
        if let Some((step, answer)) = &stream.last_answer
            && *step == view.work.first_step
        {
            self.repeats.fetch_add(1, Ordering::Relaxed);
            return Ok(answer.clone());
        }
        let applied = stream.ledger.try_apply_once(view.work, || self.add_differences(&copies, worker, view))?;
        match applied {
            Applied::Now(answer) => {
                stream.last_answer = Some((view.work.first_step, answer.clone()));
                Ok(answer)
            }
            Applied::Before | Applied::Part => {
                Err(Error::Overlap { stream: view.work.stream, first: view.work.first_step, last: view.work.last_step })
            }
        }
    }

    fn add_differences(&self, copies: &Copies, worker: u32, view: &PushView<'_>) -> Result<Payload> {
        let mut scratch = self.scratch();
        for PushedStage { keys, gradients: differences, .. } in &view.stages {
            for ((&number, &dim), differences) in keys.tables.iter().zip(keys.dims).zip(differences) {
                let table = self.sparse(number)?;
                table.check_dim(dim)?;
                table.table.add(keys.keys, differences, &mut scratch).map_err(|e| table.error("adding to", e))?;
                copies.changed(number)?.lock().record(worker, keys.keys);
            }
        }
        for (number, difference) in &view.blocks {
            let block = self.dense(*number)?;
            block.table.add(difference).map_err(|e| block.error("adding to", e))?;
        }
        let mut answer = Payload::new();
        let count = self.tables.read().sparse.len() as u32;
        for number in 0..count {
            let table = self.sparse(number)?;
            let mut keys = copies.changed(number)?.lock().take_changed(worker);
            // What this exchange itself sent may have met others' changes in between: its rows are in the set then.
            keys.sort_unstable();
            answer.put(&[keys.len() as u64]);
            answer.put(&keys);
            let rows = answer.room::<f32>(keys.len() * table.table.dim());
            table
                .table
                .pull(&keys, Missing::Initial, rows, &mut scratch)
                .map_err(|e| table.error("pulling from", e))?;
        }
        self.put_scratch(scratch);
        request::pull_dense::put_values(self, view.width, view.blocks.iter().map(|&(block, _)| block), &mut answer)?;
        Ok(answer)
    }

    /// What each worker has yet to hear of, where workers train on copies.
    pub(crate) fn copies(&self) -> Option<Arc<Copies>> {
        self.tables.read().copies.clone()
    }

    /// Fails unless the request is of the kind that the job's mode has.
    fn check_mode(&self, what: Kind) -> Result<Option<Arc<Copies>>> {
        let kept = self.tables.read();
        match &kept.description {
            Some(tables) if kept.copies.is_some() != (what == Kind::ExchangeGeo) => {
                Err(Error::WrongMode { what: what.name(), mode: tables.mode.to_string() })
            }
            _ => Ok(kept.copies.clone()),
        }
    }

    fn stream(&self, stream: u32) -> Arc<Mutex<Stream>> {
        self.ledgers.lock().entry(stream).or_default().clone()
    }

    /// A stream takes part from now on, once all of its group have asked.
    pub(crate) fn join(&self, worker: u32, stream: u32, change: u64) -> Result<Outcome> {
        self.check_stream(worker, stream)?;
        let mut groups = self.groups.lock();
        Ok(match groups.iter_mut().find(|group| group.has(stream)) {
            Some(group) => group.join(stream, change),
            None => {
                let mut payload = Payload::new();
                payload.put(&[0u64]);
                Outcome::Now(Ok(payload))
            }
        })
    }

    /// A stream takes part no more in this pass.
    pub(crate) fn leave(&self, worker: u32, stream: u32, change: u64) -> Result<()> {
        self.check_stream(worker, stream)?;
        if let Some(group) = self.groups.lock().iter_mut().find(|group| group.has(stream)) {
            group.leave(self, stream, change);
        }
        Ok(())
    }

    /// A worker is done for good: nobody waits for it any more. The server ends when all are.
    pub(crate) fn depart(&self, worker: u32, workers: u32) -> Result<()> {
        check_worker(worker, workers)?;
        // Noted first: tables that are made from here on are made without it.
        let mut collectives = self.collectives.lock();
        collectives.leave(worker);
        let is_last = collectives.left().range(..workers).count() == workers as usize;
        drop(collectives);
        let kept = self.tables.read();
        let streams = kept.description.as_ref().map_or(0..0, |tables| tables.streams_of(worker));
        kept.copies.iter().for_each(|copies| copies.leave(worker));
        drop(kept);
        self.depart_groups(streams);
        if is_last {
            self.stop();
        }
        Ok(())
    }

    fn depart_groups(&self, streams: Range<u32>) {
        let mut groups = self.groups.lock();
        for stream in streams {
            if let Some(group) = groups.iter_mut().find(|group| group.has(stream)) {
                group.depart(self, stream);
            }
        }
    }

    /// A worker comes to a collective, and is answered when all are there.
    pub(crate) fn meet(&self, worker: u32, number: u64, wanted: Collective, brought: Brought) -> Result<Outcome> {
        self.collectives.lock().meet(worker, number, wanted, brought)
    }

    /// Shrinks one sparse table or all, once for each `id`.
    pub(crate) fn shrink(&self, id: Nonce, shrink: &Shrink) -> Result<Shrunk> {
        let mut shrinks = self.shrinks.lock();
        if let Some((_, shrunk)) = shrinks.iter().find(|(known, _)| *known == id) {
            self.repeats.fetch_add(1, Ordering::Relaxed);
            return Ok(*shrunk);
        }
        let mut tables = self.tables.read().sparse.clone();
        if let Some(wanted) = &shrink.table {
            let names = tables.iter().map(|named| format!("`{}`", named.name)).collect::<Vec<_>>().join(", ");
            tables.retain(|named| named.name == *wanted);
            if tables.is_empty() {
                return Err(Error::NoSuchTable { table: wanted.clone(), names });
            }
        }
        let mut total = Shrunk::default();
        for named in tables {
            if shrink.end_of_day {
                named.table.end_of_day();
            }
            total.merge(named.table.shrink(shrink.now, shrink.max_age));
            named.table.set_stamp(shrink.now);
        }
        shrinks.push_back((id, total));
        if shrinks.len() > KEPT_SHRINKS {
            shrinks.pop_front();
        }
        Ok(total)
    }

    /// How the server stands.
    pub fn status(&self) -> Status {
        let kept = self.tables.read();
        let sparse: Vec<_> = kept
            .sparse
            .iter()
            .map(|named| (named.name.clone(), named.table.len() as u64, named.table.bytes() as u64))
            .collect();
        let dense: Vec<_> =
            kept.dense.iter().map(|named| (named.name.clone(), named.table.len() as u64, named.table.step())).collect();
        let non_finite = kept.sparse.iter().map(|named| named.table.non_finite()).sum::<u64>()
            + kept.dense.iter().map(|named| named.table.non_finite()).sum::<u64>();
        drop(kept);
        let groups = self.groups.lock();
        let mut positions: Vec<(u32, u64)> = groups.iter().flat_map(Group::positions).collect();
        let ledgers = self.ledgers.lock().clone();
        positions.extend(ledgers.iter().map(|(&id, stream)| (id, stream.lock().ledger.position(id))));
        positions.sort_unstable();
        let waiting_for = groups.iter().flat_map(Group::missing).collect();
        drop(groups);
        let collectives = self.collectives.lock();
        Status {
            sparse,
            dense,
            positions,
            waiting_for,
            collectives: collectives.number(),
            workers_awaited: collectives.missing(),
            workers_left: collectives.left().iter().copied().collect(),
            non_finite,
            repeats: self.repeats.load(Ordering::Relaxed),
            connected: self.connected.lock().keys().copied().collect(),
        }
    }

    /// Ends the server.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Follows whether the server should end.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopped.subscribe()
    }

    /// Shows every dense block: for saving and tests.
    pub fn each_block(&self, mut look: impl FnMut(&str, &[f32])) {
        let dense = self.tables.read().dense.clone();
        dense.iter().for_each(|named| named.table.read(|values| look(&named.name, values)));
    }

    /// Shows every row of a sparse table with everything that has to be saved of it.
    pub fn each_whole_row(&self, table: u32, look: impl FnMut(&Row<'_>)) -> Result<()> {
        self.sparse(table)?.table.for_each_row(look);
        Ok(())
    }

    /// Shows every row of a sparse table: for tests.
    pub fn each_row(&self, table: u32, look: impl FnMut(u64, &[f32], &[f32])) -> Result<()> {
        self.sparse(table)?.table.for_each(look);
        Ok(())
    }
}

/// New tables: empty ones, and first values.
fn make(tables: &Tables, first_values: &[&[f32]]) -> Result<Restored> {
    let mut sparse = Vec::with_capacity(tables.sparse.len());
    for (name, spec) in &tables.sparse {
        let spec = if tables.has_rules() { spec.clone() } else { spec.without_state() };
        let table =
            SparseTable::new(spec).map_err(|source| Error::Table { action: "making", table: name.clone(), source })?;
        sparse.push(Arc::new(NamedSparse { name: name.clone(), table: Arc::new(table) }));
    }
    let mut dense = Vec::with_capacity(tables.dense.len());
    for ((name, spec), values) in tables.dense.iter().zip(first_values) {
        let error = |source| Error::Table { action: "making", table: name.clone(), source };
        let spec = if tables.has_rules() { spec.clone() } else { spec.without_state() };
        let table = DenseTable::new(spec).map_err(error)?;
        table.assign(values).map_err(error)?;
        dense.push(Arc::new(NamedDense { name: name.clone(), table }));
    }
    Ok(Restored { sparse, dense, work: None })
}

fn check_same(existing: &Tables, wanted: &Tables) -> Result<()> {
    let mismatch = |table: &str, existing: String, wanted: String| Error::TableMismatch {
        table: table.to_owned(),
        existing,
        wanted,
    };
    let group = |tables: &Tables| (tables.mode, tables.workers, tables.threads);
    if group(existing) != group(wanted) {
        let text =
            |tables: &Tables| format!("mode {}, {} workers of {} threads", tables.mode, tables.workers, tables.threads);
        return Err(mismatch("all", text(existing), text(wanted)));
    }
    if existing.sparse.len() != wanted.sparse.len() || existing.dense.len() != wanted.dense.len() {
        let text = |tables: &Tables| format!("{} sparse, {} dense", tables.sparse.len(), tables.dense.len());
        return Err(mismatch("all", text(existing), text(wanted)));
    }
    for (a, b) in existing.sparse.iter().zip(&wanted.sparse) {
        if a != b {
            return Err(mismatch(&a.0, format!("{a:?}"), format!("{b:?}")));
        }
    }
    for (a, b) in existing.dense.iter().zip(&wanted.dense) {
        if a != b {
            return Err(mismatch(&a.0, format!("{a:?}"), format!("{b:?}")));
        }
    }
    Ok(())
}
