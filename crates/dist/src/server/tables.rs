//! The data plane of a server: tables, what has been applied to them, and the gate that a snapshot closes.
//!
//! Used by any number of threads; tables lock one shard or one block at a time. This file knows streams only as numbers in a
//! ledger, and no workers.
//!
//! Lock order: the gate, then the ledger of a stream, then tables.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openfleet_core::placement::Buckets;
use openfleet_core::{Key, WorkId};
use openfleet_table::checkpoint::{DenseCut, GroupWork, SparseCut, TableCuts, Work};
use openfleet_table::ledger::{Applied, Covered, Ledger};
use openfleet_table::sparse::{Existing, Scratch};
use openfleet_table::{DenseTable, Missing, Shrunk, SparseTable};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::description::Description;
use super::geo::GeoState;
use super::shrink::Shrink;
use super::step::Means;
use crate::error::{Error, Result};
use crate::floats;
use crate::frame::{Payload, PayloadPool};
use crate::gradients::{self, KeysView, PushView, PushedStage, Wanted, put_barrier};
use crate::handshake::Nonce;
use crate::pull::PullView;

/// A sparse table with its name.
pub(crate) struct NamedSparse {
    pub(super) name: String,
    /// The rows.
    pub(crate) table: Arc<SparseTable>,
}

/// A dense block with its name.
pub(crate) struct NamedDense {
    pub(super) name: String,
    /// The values.
    pub(crate) table: DenseTable,
}

impl NamedSparse {
    /// Adds the table's name to an error.
    pub(crate) fn error(&self, action: &'static str, source: openfleet_table::Error) -> Error {
        Error::Table { action, table: self.name.clone(), source }
    }

    /// Fails unless the worker uses the same row size.
    pub(crate) fn check_dim(&self, dim: u32) -> Result<()> {
        if self.table.dim() == dim as usize {
            return Ok(());
        }
        let what = format!("a row of table `{}`", self.name);
        Err(Error::Length { what, expected: self.table.dim(), got: dim as usize })
    }
}

impl NamedDense {
    /// Adds the block's name to an error.
    pub(crate) fn error(&self, action: &'static str, source: openfleet_table::Error) -> Error {
        Error::Table { action, table: self.name.clone(), source }
    }
}

/// The data plane of a server.
#[derive(Default)]
pub(crate) struct Tables {
    pub(super) current: RwLock<TableSet>,
    /// One lock per stream: a repeat waits until the original is applied or refused.
    pub(super) streams: Mutex<HashMap<u32, Arc<Mutex<Stream>>>>,
    /// Read-locked while a table changes. Closed while a snapshot is being prepared: only pushes that the target contains may
    /// pass.
    gate: RwLock<Option<Option<Work>>>,
    /// The last shrinks and their results, for repeats. Locked while a shrink runs: a repeat waits for the original.
    shrinks: Mutex<VecDeque<(Nonce, Shrunk)>>,
    /// Buffers for the mean gradients of a group's step.
    pub(super) means: Mutex<Means>,
    scratches: Mutex<Vec<Scratch>>,
    /// Memory of replies.
    payloads: PayloadPool,
    /// Copies of the dense values to which only differences are sent.
    dense_copies: Mutex<HashMap<CopyOwner, Arc<Mutex<DenseCopy>>>>,
    repeats: AtomicU64,
}

/// Who has a copy of the dense values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum CopyOwner {
    /// All threads of a worker together.
    Worker(u32),
    /// One stream, in a mode in which each receives the values of its own steps.
    Stream(u32),
}

/// A copy after the reply with this number.
#[derive(Default)]
struct DenseCopy {
    number: u64,
    /// The number of the reply before it, as its owner has said; 0 for none.
    based_on: u64,
    values: Vec<Vec<f32>>,
    answer: Payload,
}

/// The tables of a program.
#[derive(Default)]
pub(super) struct TableSet {
    pub(super) description: Option<Description>,
    pub(super) sparse: Vec<Arc<NamedSparse>>,
    pub(super) dense: Vec<Arc<NamedDense>>,
    /// In geo mode: what each worker has not seen yet.
    pub(super) geo: Option<Arc<GeoState>>,
}

/// What is known about a stream.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) ledger: Ledger,
    /// GEO: the reply to the last exchange, for a repeat.
    pub(super) last_answer: Option<(u64, Payload)>,
}

/// Number of shrinks whose repeats are recognised; a worker has one in flight at a time.
const KEPT_SHRINKS: usize = 64;

/// Maximum bytes of a reply: a short request can name one table and one key many times.
const LONGEST_ANSWER: u64 = 1 << 30;

/// Fails if this many more floats would make a reply too long. Called before they are allocated.
fn check_answer(reply: &Payload, floats: usize) -> Result<()> {
    let length = (reply.bytes().len() as u64).saturating_add((floats as u64).saturating_mul(4));
    if length <= LONGEST_ANSWER { Ok(()) } else { Err(Error::TooLong { length, cap: LONGEST_ANSWER }) }
}

/// Permission to change tables until it is dropped; a snapshot waits for it.
pub(crate) struct GatePermit<'a>(RwLockReadGuard<'a, Option<Option<Work>>>);

impl GatePermit<'_> {
    /// Whether the gate is open for some work.
    pub(crate) fn lets_through(&self, work: WorkId) -> bool {
        match &*self.0 {
            None => true,
            Some(target) => target.as_ref().is_some_and(|target| target.streams.is_applied(work) == Covered::All),
        }
    }
}

impl Tables {
    /// Takes permission to change tables.
    pub(crate) fn permit(&self) -> GatePermit<'_> {
        GatePermit(self.gate.read())
    }

    /// Closes or opens the gate.
    pub(super) fn set_gate(&self, gate: Option<Option<Work>>) {
        *self.gate.write() = gate;
    }

    /// Runs `look` while no table changes.
    pub(super) fn while_still<R>(&self, look: impl FnOnce() -> R) -> R {
        let _gate = self.gate.write();
        look()
    }

    /// The current tables.
    pub(super) fn current(&self) -> RwLockReadGuard<'_, TableSet> {
        self.current.read()
    }

    /// Replaces the current tables.
    pub(super) fn replace(&self, change: impl FnOnce(&mut TableSet)) {
        change(&mut self.current.write());
    }

    /// Removes all tables, and sets what has been applied to `work`.
    pub(super) fn begin(&self, work: Option<&Work>) {
        *self.current.write() = TableSet::default();
        self.set_gate(None);
        self.shrinks.lock().clear();
        self.dense_copies.lock().clear();
        *self.means.lock() = Means::default();
        let mut streams = self.streams.lock();
        streams.clear();
        for (stream, ledger) in work.iter().flat_map(|work| work.streams.by_stream()) {
            streams.entry(stream).or_default().lock().ledger = ledger;
        }
    }

    /// A sparse table by number.
    pub(crate) fn sparse(&self, number: u32) -> Result<Arc<NamedSparse>> {
        let current = self.current.read();
        let unknown = || Error::UnknownTable { table: number, count: current.sparse.len() };
        current.sparse.get(number as usize).cloned().ok_or_else(unknown)
    }

    /// A dense block by number.
    pub(crate) fn dense(&self, number: u32) -> Result<Arc<NamedDense>> {
        let current = self.current.read();
        let unknown = || Error::UnknownTable { table: number, count: current.dense.len() };
        current.dense.get(number as usize).cloned().ok_or_else(unknown)
    }

    /// In geo mode: what each worker has not seen yet.
    pub(crate) fn geo(&self) -> Option<Arc<GeoState>> {
        self.current.read().geo.clone()
    }

    /// Takes working memory for one request; return it with [`put_scratch`](Tables::put_scratch).
    pub(crate) fn scratch(&self) -> Scratch {
        self.scratches.lock().pop().unwrap_or_default()
    }

    /// Returns working memory.
    pub(crate) fn put_scratch(&self, scratch: Scratch) {
        self.scratches.lock().push(scratch);
    }

    /// Decodes a push; narrow floats are converted into memory of the pool.
    pub(crate) fn decode<'a>(&self, push: &'a Payload) -> Result<PushView<'a>> {
        PushView::decode_in(push.bytes(), &self.payloads)
    }

    /// An empty reply.
    pub(crate) fn reply(&self) -> Payload {
        self.payloads.empty()
    }

    /// Appends the values of blocks to a reply.
    pub(super) fn put_values(&self, blocks: impl Iterator<Item = u32>, reply: &mut Payload) -> Result<()> {
        for block in blocks {
            let block = self.dense(block)?;
            check_answer(reply, block.table.len())?;
            let values = reply.append::<f32>(block.table.len());
            block.table.pull(values).map_err(|error| block.error("pulling from", error))?;
        }
        Ok(())
    }

    /// Encodes how blocks differ from a copy of them: as narrow differences if the copy is known, else as full values.
    ///
    /// `held` is the number of the last reply that its owner has added; 0 for none. A repeat gets the same reply. A request that
    /// arrives after later ones makes the owner's next reply one with full values, because the copy is no longer known then. Numbers
    /// only grow, also if this server has restarted: no later reply has a number that the owner may still hold.
    pub(crate) fn changes(&self, owner: CopyOwner, held: u64, blocks: &[u32]) -> Result<Payload> {
        let known = self.dense_copies.lock().entry(owner).or_default().clone();
        let mut known = known.lock();
        if held != 0 && known.based_on == held {
            return Ok(known.answer.clone());
        }
        let is_known = held != 0 && known.number == held && known.values.len() == blocks.len();
        let number = known.number.max(held).saturating_add(1);
        let mut answer = self.reply();
        answer.put(&[number, u64::from(is_known)]);
        // If this fails, the next reply has full values.
        let mut values = std::mem::take(&mut known.values);
        values.resize(blocks.len(), Vec::new());
        for (&block, held) in blocks.iter().zip(&mut values) {
            let block = self.dense(block)?;
            check_answer(&answer, block.table.len())?;
            block.table.read(|newest| match is_known {
                true => floats::put_differences(&mut answer, newest, held),
                false => {
                    answer.put(newest);
                    newest.clone_into(held);
                }
            });
        }
        *known = DenseCopy { number, based_on: held, values, answer: answer.clone() };
        Ok(answer)
    }

    /// How all blocks differ from a copy of them; see [`changes`](Tables::changes).
    pub(crate) fn all_changes(&self, owner: CopyOwner, held: u64) -> Result<Payload> {
        let count = self.current.read().dense.len() as u32;
        self.changes(owner, held, &(0..count).collect::<Vec<_>>())
    }

    /// The values, or their changes, and the rows that an applied push asked for; between them, for a step of a group, how long it
    /// waited for the pushes of other workers.
    pub(crate) fn answer_push(&self, worker: u32, push: &Payload, barrier: Option<Duration>) -> Result<Payload> {
        let Wanted { stream, changes_since, blocks, next_pull } = gradients::wanted(push.bytes())?;
        let owner = if barrier.is_some() { CopyOwner::Stream(stream) } else { CopyOwner::Worker(worker) };
        let mut reply = match changes_since {
            Some(held) => self.all_changes(owner, held)?,
            None => self.values_of(&blocks)?,
        };
        if let Some(barrier) = barrier {
            put_barrier(&mut reply, barrier);
        }
        if let Some(pull) = next_pull {
            self.pull(worker, &PullView::decode(pull)?, &mut reply)?;
        }
        Ok(reply)
    }

    /// Appends the rows of a pull to a reply.
    ///
    /// In geo mode a worker that trains keeps the rows it pulled: they contain the others' earlier changes, which are not sent to
    /// it again. That is why pulls are numbered: if the original of a repeated pull arrives late, it must not make the server
    /// forget changes that happened in between.
    pub(crate) fn pull(&self, worker: u32, pull: &PullView<'_>, reply: &mut Payload) -> Result<()> {
        let creates = pull.missing == Missing::Create;
        // New rows and stamps change the table too.
        let _permit = creates.then(|| self.permit());
        let geo = self.geo().filter(|geo| creates && geo.is_first(worker, pull.number));
        if let Some(geo) = &geo {
            geo.trains(worker);
        }
        let mut scratch = self.scratch();
        for KeysView { tables, dims, keys } in &pull.stages {
            let floats =
                dims.iter().fold(0, |sum: usize, &dim| sum.saturating_add(dim as usize)).saturating_mul(keys.len());
            check_answer(reply, floats)?;
            for (&number, &dim) in tables.iter().zip(*dims) {
                let table = self.sparse(number)?;
                table.check_dim(dim)?;
                if let Some(geo) = &geo {
                    // Before the rows are read: changes from here on are recorded again.
                    geo.changed(number)?.lock().forget(worker, keys);
                }
                let rows = reply.append::<f32>(keys.len() * dim as usize);
                let pulled = table.table.pull(keys, pull.missing, rows, &mut scratch);
                pulled.map_err(|error| table.error("pulling from", error))?;
            }
        }
        self.put_scratch(scratch);
        Ok(())
    }

    /// Sets the weights of keys that have no row.
    pub(crate) fn put(&self, number: u32, dim: u32, keys: &[Key], rows: &[f32]) -> Result<()> {
        let _permit = self.permit();
        let table = self.sparse(number)?;
        table.check_dim(dim)?;
        let mut scratch = self.scratch();
        table
            .table
            .put(keys, rows, Existing::Keep, &mut scratch)
            .map_err(|error| table.error("putting rows into", error))?;
        self.put_scratch(scratch);
        Ok(())
    }

    /// The number of shards of a table, and the keys of one of them.
    pub(crate) fn keys_of(&self, number: u32, shard: u32) -> Result<(usize, Vec<Key>)> {
        let _permit = self.permit();
        let table = &self.sparse(number)?.table;
        Ok((table.shards(), table.keys_of(shard as usize)))
    }

    /// The values of blocks.
    pub(crate) fn values_of(&self, blocks: &[u32]) -> Result<Payload> {
        let mut reply = self.reply();
        self.put_values(blocks.iter().copied(), &mut reply)?;
        Ok(reply)
    }

    /// Fails unless everything in a push fits its table. Checked before anything is applied: a push that was applied in part
    /// would be applied again when the client retries, and one bad push must not fail the step of a whole group.
    pub(crate) fn check_push(&self, view: &PushView<'_>) -> Result<()> {
        let next_pull = view.next_pull.map(PullView::decode).transpose()?;
        let pushed = view.stages.iter().map(|PushedStage { keys, .. }| keys);
        for keys in pushed.chain(next_pull.iter().flat_map(|pull| &pull.stages)) {
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

    /// Applies a push that does not belong to a group, once.
    pub(crate) fn push(&self, _permit: &GatePermit<'_>, view: &PushView<'_>) -> Result<()> {
        let work = view.work;
        let stream = self.stream(work.stream);
        let applied = stream.lock().ledger.try_apply_once(work, || self.apply_push(view))?;
        match applied {
            Applied::Now(()) => Ok(()),
            Applied::Before => {
                self.repeated();
                Ok(())
            }
            Applied::Part => Err(Error::Overlap { stream: work.stream, first: work.first_step, last: work.last_step }),
        }
    }

    /// Counts a request that was recognised as a repeat.
    pub(crate) fn repeated(&self) {
        self.repeats.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of requests that were recognised as repeats.
    pub(crate) fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
    }

    fn apply_push(&self, view: &PushView<'_>) -> Result<()> {
        let mut scratch = self.scratch();
        for PushedStage { keys, gradients, show_click } in &view.stages {
            for ((&number, &dim), gradients) in keys.tables.iter().zip(keys.dims).zip(gradients) {
                let table = self.sparse(number)?;
                table.check_dim(dim)?;
                let pushed = table.table.push_at(keys.keys, gradients, *show_click, view.rate_factor, &mut scratch);
                pushed.map_err(|e| table.error("pushing to", e))?;
            }
        }
        self.put_scratch(scratch);
        for (number, gradient) in &view.blocks {
            let block = self.dense(*number)?;
            let pushed = block.table.push_at(gradient, view.rate_factor);
            pushed.map_err(|e| block.error("pushing to", e))?;
        }
        Ok(())
    }

    pub(super) fn stream(&self, stream: u32) -> Arc<Mutex<Stream>> {
        self.streams.lock().entry(stream).or_default().clone()
    }

    /// What streams outside of groups have applied.
    pub(crate) fn applied(&self) -> Ledger {
        let mut applied = Ledger::new();
        let streams = self.streams.lock().clone();
        streams.values().for_each(|stream| applied.merge(&stream.lock().ledger));
        applied
    }

    /// What has been applied, including the given work of groups.
    pub(crate) fn work(&self, groups: Vec<GroupWork>) -> Work {
        Work { streams: self.applied(), groups }
    }

    /// Shrinks one sparse table or all, once per `id`.
    pub(crate) fn shrink(&self, id: Nonce, shrink: &Shrink) -> Result<Shrunk> {
        let mut shrinks = self.shrinks.lock();
        if let Some((_, shrunk)) = shrinks.iter().find(|(known, _)| *known == id) {
            self.repeated();
            return Ok(*shrunk);
        }
        let mut tables = self.current.read().sparse.clone();
        if let Some(wanted) = &shrink.table {
            let names = tables.iter().map(|named| format!("`{}`", named.name)).collect::<Vec<_>>().join(", ");
            tables.retain(|named| named.name == *wanted);
            if tables.is_empty() {
                return Err(Error::NoSuchTable { table: wanted.clone(), names });
            }
        }
        let mut total = Shrunk::default();
        for named in tables {
            total.merge(shrink.apply(&named.table));
        }
        shrinks.push_back((id, total));
        if shrinks.len() > KEPT_SHRINKS {
            shrinks.pop_front();
        }
        Ok(total)
    }

    /// Runs `work` unless a shrink is running.
    pub(super) fn unless_shrinking<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        let _no_shrink = self.shrinks.try_lock()?;
        Some(work())
    }

    /// Takes a snapshot: copies dense blocks and begins a cut of each sparse table. Nothing may change meanwhile.
    pub(super) fn mark(&self, work: Work, since: Option<&str>) -> Result<TableCuts> {
        let current = self.current.read();
        let Some(tables) = &current.description else { return Err(Error::NothingToSave) };
        let share = &tables.share;
        if share.blocks.len() != current.dense.len() {
            return Err(Error::Damaged { what: "description of tables: it does not say where blocks belong" });
        }
        let buckets = Buckets::new(share.servers as usize)?.range(share.server as usize);
        let mut sparse = Vec::with_capacity(current.sparse.len());
        for named in &current.sparse {
            let cut = named.table.cut_since(since).map_err(|error| named.error("marking", error))?;
            sparse.push(SparseCut { name: named.name.clone(), cut, without_state: false });
        }
        let mut dense = Vec::with_capacity(current.dense.len());
        for (named, &(parameter, offset)) in current.dense.iter().zip(&share.blocks) {
            let Some((name, spec)) = share.parameters.get(parameter as usize) else {
                return Err(Error::Damaged { what: "description of tables: a block of no parameter" });
            };
            // The optimizer that runs here; in geo mode it runs on the workers.
            let spec = openfleet_table::DenseSpec { optimizer: named.table.spec().optimizer, ..spec.clone() };
            dense.push(named.table.read_all(|values, state, step| DenseCut {
                parameter: name.clone(),
                offset: offset as usize,
                spec,
                values: values.to_vec(),
                state: state.to_vec(),
                step,
            }));
        }
        Ok(TableCuts { server: share.server, buckets, sparse, dense, work, position: serde_json::Value::Null })
    }
}

#[cfg(test)]
mod tests {
    use openfleet_core::placement::PlacementRule;
    use openfleet_core::strategy::Mode;
    use openfleet_table::{DenseSpec, Optimizer, Schedule, Sgd};

    use super::*;
    use crate::client::Link;
    use crate::communicator::{Remote, Worker};
    use crate::frame::Reader;
    use crate::request::pull_changes::take_number;
    use crate::server::State;

    const OWNER: CopyOwner = CopyOwner::Worker(0);

    /// A worker's side: its values, and the number of the last reply that it has added.
    #[derive(Default)]
    struct Copy {
        values: [f32; 1],
        held: u64,
    }

    impl Copy {
        fn add(&mut self, answer: &Payload) {
            let mut reader = Reader::new(answer.bytes());
            let (number, are_differences) = take_number(&mut reader).unwrap();
            match are_differences {
                true => floats::add_differences(&mut reader, &mut self.values).unwrap(),
                false => floats::take_into(&mut reader, &mut self.values).unwrap(),
            }
            self.held = number;
        }
    }

    /// A server with one parameter of one value, and a function that adds 1 to it.
    fn server() -> Arc<State> {
        let state = Arc::new(State::new());
        let (optimizer, schedule) = (Optimizer::Sgd(Sgd::default()), Schedule::Constant(1.0));
        let spec = DenseSpec { shape: vec![1], optimizer, schedule, regularizer: None, non_finite: Default::default() };
        let worker = Worker { rank: 0, count: 1, threads: 1 };
        let links = vec![Link::in_process("here", state.clone(), 0)];
        let dense = [("value".to_owned(), spec, vec![0.0])];
        Remote::create(links, worker, Mode::Async, PlacementRule::default(), &[], &dense).unwrap();
        state
    }

    fn step(state: &State) {
        state.tables.dense(0).unwrap().table.push(&[-1.0]).unwrap();
    }

    #[test]
    fn a_request_that_arrives_late_does_not_make_a_later_reply_old() {
        for late in [0, 1, 2] {
            let (state, mut copy) = (server(), Copy::default());
            for _ in 0..4 {
                step(&state);
                copy.add(&state.tables.changes(OWNER, copy.held, &[0]).unwrap());
            }
            // Nobody waits for its reply any more.
            state.tables.changes(OWNER, late, &[0]).unwrap();
            for expected in [5.0, 6.0] {
                step(&state);
                copy.add(&state.tables.changes(OWNER, copy.held, &[0]).unwrap());
                assert_eq!(copy.values, [expected], "late {late}");
            }
        }
    }

    #[test]
    fn a_repeat_is_answered_equally_and_a_restarted_server_sends_full_values() {
        for replies in 1..4 {
            let (state, mut copy) = (server(), Copy::default());
            for _ in 0..replies {
                step(&state);
                copy.add(&state.tables.changes(OWNER, copy.held, &[0]).unwrap());
            }
            // A restarted server knows no copies.
            state.tables.dense_copies.lock().clear();
            for _ in 0..3 {
                step(&state);
                let lost = state.tables.changes(OWNER, copy.held, &[0]).unwrap();
                let answer = state.tables.changes(OWNER, copy.held, &[0]).unwrap();
                assert_eq!(lost.bytes(), answer.bytes(), "after {replies} replies");
                copy.add(&answer);
                assert_eq!(state.tables.dense(0).unwrap().table.read(|values| values.to_vec()), copy.values);
            }
        }
    }
}
