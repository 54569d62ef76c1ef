//! What a server keeps, and what each request does to it. No sockets, no clock: driven by calls.
//!
//! Lock order: shrinks, collectives or groups (never two of these), then ledger of a stream, then tables. Tables lock
//! themselves, a shard or a block at a time.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openfleet_core::strategy::Mode;
use openfleet_table::geo::Changed;
use openfleet_table::ledger::{Applied, Ledger};
use openfleet_table::sparse::Scratch;
use openfleet_table::{DenseTable, Missing, Row, Shrunk, SparseTable};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use super::collective::{Collectives, check_worker};
use super::group::{Group, values_wanted};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::handshake::Nonce;
use crate::request::all_reduce::Collective;
use crate::request::create_tables::Tables;
use crate::request::push::PushView;
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
    name: String,
    /// The rows.
    pub table: SparseTable,
}

/// A dense block with the name people know it by.
pub struct NamedDense {
    name: String,
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
    tables: RwLock<Kept>,
    /// One lock a stream: a repeat waits until the first is applied or refused.
    ledgers: Mutex<HashMap<u32, Arc<Mutex<Stream>>>>,
    /// Streams that step together; none where nobody waits.
    groups: Mutex<Vec<Group>>,
    collectives: Mutex<Collectives>,
    /// The last shrinks and what came of them, for repeats. Locked while one runs: a repeat waits for the first.
    shrinks: Mutex<VecDeque<(Nonce, Shrunk)>>,
    /// Newest incarnation of each worker that said hello.
    incarnations: Mutex<BTreeMap<u32, u64>>,
    connected: Mutex<BTreeMap<u32, u32>>,
    scratches: Mutex<Vec<Scratch>>,
    repeats: AtomicU64,
    /// Requests to make tables so far.
    sessions: AtomicU64,
    stopped: watch::Sender<bool>,
}

#[derive(Default)]
struct Kept {
    description: Option<Tables>,
    sparse: Vec<Arc<NamedSparse>>,
    dense: Vec<Arc<NamedDense>>,
    /// GEO: per sparse table, what each worker has yet to hear of.
    changed: Vec<Arc<Mutex<Changed>>>,
}

/// What is known of a stream.
#[derive(Default)]
struct Stream {
    ledger: Ledger,
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

    /// Answers one request of a worker.
    pub fn handle(&self, worker: u32, kind: Kind, payload: Payload) -> Outcome {
        let bytes = payload.bytes();
        let answer = match kind {
            Kind::Heartbeat => Ok(Payload::new()),
            Kind::CreateTables => request::create_tables::apply(self, bytes),
            Kind::PullSparse => request::pull_sparse::apply(self, worker, bytes),
            Kind::PullDense => request::pull_dense::apply(self, bytes),
            Kind::ExchangeGeo => request::exchange_geo::apply(self, worker, bytes),
            Kind::Leave => request::leave::apply(self, bytes),
            Kind::Depart => request::depart::apply(self, worker, bytes),
            Kind::Status => request::status::apply(self),
            Kind::Shrink => request::shrink::apply(self, bytes),
            Kind::Stop => request::stop::apply(self),
            Kind::Join => match request::join::apply(self, bytes) {
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
            Kind::Push => match self.push(payload) {
                Ok(outcome) => return outcome,
                Err(error) => Err(error),
            },
        };
        Outcome::Now(answer)
    }

    /// Lets a worker in unless a newer incarnation of it was here.
    pub fn admit(&self, rank: u32, incarnation: u64) -> std::result::Result<(), String> {
        let mut incarnations = self.incarnations.lock();
        let newest = incarnations.entry(rank).or_insert(incarnation);
        if incarnation < *newest {
            return Err(format!("incarnation {incarnation} of worker {rank} was replaced by incarnation {newest}"));
        }
        *newest = incarnation;
        *self.connected.lock().entry(rank).or_insert(0) += 1;
        Ok(())
    }

    /// Whether this incarnation is still the newest: an older one's requests are refused even on a live connection.
    pub fn is_current(&self, rank: u32, incarnation: u64) -> bool {
        self.incarnations.lock().get(&rank) == Some(&incarnation)
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

    /// Makes tables, or checks that those that exist are the same; says whether they are new, and the how-many-th request
    /// this is.
    pub(crate) fn create_tables(&self, tables: Tables, first_values: &[&[f32]]) -> Result<(bool, u64)> {
        tables.check()?;
        let mut kept = self.tables.write();
        let session = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(existing) = &kept.description {
            return check_same(existing, &tables).map(|()| (false, session));
        }
        let mut sparse = Vec::with_capacity(tables.sparse.len());
        for (name, spec) in &tables.sparse {
            let table = SparseTable::new(spec.clone()).map_err(|source| Error::Table {
                action: "making",
                table: name.clone(),
                source,
            })?;
            sparse.push(Arc::new(NamedSparse { name: name.clone(), table }));
        }
        let mut dense = Vec::with_capacity(tables.dense.len());
        for ((name, spec), values) in tables.dense.iter().zip(first_values) {
            let error = |source| Error::Table { action: "making", table: name.clone(), source };
            let table = DenseTable::new(spec.clone()).map_err(error)?;
            table.assign(values).map_err(error)?;
            dense.push(Arc::new(NamedDense { name: name.clone(), table }));
        }
        let changed = sparse.iter().map(|_| {
            let mut changed = Changed::new();
            (0..tables.workers).for_each(|worker| changed.join(worker));
            Arc::new(Mutex::new(changed))
        });
        *kept = Kept { changed: changed.collect(), sparse, dense, description: None };
        let threads = tables.threads;
        *self.groups.lock() = match tables.mode {
            Mode::Sync | Mode::Hybrid => vec![Group::new(0..tables.streams())],
            Mode::HalfAsync => {
                (0..tables.workers).map(|worker| Group::new(worker * threads..(worker + 1) * threads)).collect()
            }
            Mode::Async | Mode::Geo => Vec::new(),
        };
        let left: Vec<u32> = self.collectives.lock().left().iter().copied().collect();
        for worker in left {
            // They hold nothing yet, so nothing is applied, and nobody is answered.
            self.depart_groups(tables.streams_of(worker));
        }
        kept.description = Some(tables);
        Ok((true, session))
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

    fn push(&self, payload: Payload) -> Result<Outcome> {
        let view = PushView::decode(payload.bytes())?;
        let work = view.work;
        self.check_stream(work.stream, 2)?;
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
        Ok(Outcome::Now(values_wanted(self, &payload)))
    }

    /// Fails unless everything in a push fits its table. Asked before anything is applied: half a push that was applied
    /// would be applied again when the client repeats it, and a misfit must not spoil the step of a whole group.
    fn check_push(&self, view: &PushView<'_>) -> Result<()> {
        for (keys, _) in &view.stages {
            for (&number, &dim) in keys.tables.iter().zip(keys.dims) {
                self.sparse(number)?.check_dim(dim)?;
            }
        }
        for &(number, gradient) in &view.blocks {
            let block = self.dense(number)?;
            if gradient.len() != block.table.len() {
                let what = format!("a gradient of table `{}`", block.name);
                return Err(Error::Length { what, expected: block.table.len(), got: gradient.len() });
            }
        }
        Ok(())
    }

    /// Fails unless a worker has the stream. `kinds` is 2 where hybrid's sparse streams, numbered after all others, are
    /// meant too. What is kept per stream is so bounded.
    fn check_stream(&self, stream: u32, kinds: u32) -> Result<()> {
        let count = self.tables.read().description.as_ref().map_or(0, Tables::streams).saturating_mul(kinds);
        if stream < count { Ok(()) } else { Err(Error::UnknownStream { stream, count }) }
    }

    fn apply_push(&self, view: &PushView<'_>) -> Result<()> {
        let mut scratch = self.scratch();
        for (keys, gradients) in &view.stages {
            for ((&number, &dim), gradients) in keys.tables.iter().zip(keys.dims).zip(gradients) {
                let table = self.sparse(number)?;
                table.check_dim(dim)?;
                table.table.push(keys.keys, gradients, &mut scratch).map_err(|e| table.error("pushing to", e))?;
            }
        }
        self.put_scratch(scratch);
        for &(number, gradient) in &view.blocks {
            let block = self.dense(number)?;
            block.table.push(gradient).map_err(|e| block.error("pushing to", e))?;
        }
        Ok(())
    }

    /// GEO: adds differences and tells what others changed.
    pub(crate) fn exchange_geo(&self, worker: u32, view: &PushView<'_>) -> Result<Payload> {
        self.check_stream(view.work.stream, 1)?;
        self.check_push(view)?;
        let stream = self.stream(view.work.stream);
        let mut stream = stream.lock();
        if let Some((step, answer)) = &stream.last_answer
            && *step == view.work.first_step
        {
            self.repeats.fetch_add(1, Ordering::Relaxed);
            return Ok(answer.clone());
        }
        let applied = stream.ledger.try_apply_once(view.work, || self.add_differences(worker, view))?;
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

    fn add_differences(&self, worker: u32, view: &PushView<'_>) -> Result<Payload> {
        let mut scratch = self.scratch();
        for (keys, differences) in &view.stages {
            for ((&number, &dim), differences) in keys.tables.iter().zip(keys.dims).zip(differences) {
                let table = self.sparse(number)?;
                table.check_dim(dim)?;
                table.table.add(keys.keys, differences, &mut scratch).map_err(|e| table.error("adding to", e))?;
                self.changed(number).lock().record(worker, keys.keys);
            }
        }
        for &(number, difference) in &view.blocks {
            let block = self.dense(number)?;
            block.table.add(difference).map_err(|e| block.error("adding to", e))?;
        }
        let mut answer = Payload::new();
        let count = self.tables.read().sparse.len() as u32;
        for number in 0..count {
            let table = self.sparse(number)?;
            let mut keys = self.changed(number).lock().take_changed(worker);
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
        request::pull_dense::put_values(self, view.blocks.iter().map(|&(block, _)| block), &mut answer)?;
        Ok(answer)
    }

    /// What each worker has yet to hear of a sparse table that exists.
    pub(crate) fn changed(&self, number: u32) -> Arc<Mutex<Changed>> {
        self.tables.read().changed[number as usize].clone()
    }

    fn stream(&self, stream: u32) -> Arc<Mutex<Stream>> {
        self.ledgers.lock().entry(stream).or_default().clone()
    }

    /// A stream takes part from now on, once all of its group have asked.
    pub(crate) fn join(&self, stream: u32, change: u64) -> Result<Outcome> {
        self.check_stream(stream, 1)?;
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
    pub(crate) fn leave(&self, stream: u32, change: u64) -> Result<()> {
        self.check_stream(stream, 1)?;
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
        let changed = kept.changed.clone();
        drop(kept);
        self.depart_groups(streams);
        changed.iter().for_each(|changed| changed.lock().leave(worker));
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
    pub(crate) fn meet(&self, worker: u32, number: u64, wanted: Collective, values: Vec<f64>) -> Result<Outcome> {
        self.collectives.lock().meet(worker, number, wanted, values)
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
        let in_step = groups.iter().flat_map(|group| group.streams().map(|stream| (stream, group.step())));
        let mut positions: Vec<(u32, u64)> = in_step.collect();
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
