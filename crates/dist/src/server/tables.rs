//! The data plane of a server: tables, what has been applied to them, and the gate that a snapshot closes.
//!
//! Used by as many threads as like; tables lock themselves, a shard or a block at a time. It knows streams only as numbers
//! in a ledger, and nothing of workers that come and go.
//!
//! Lock order: the gate, then the ledger of a stream, then tables.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openfleet_core::WorkId;
use openfleet_core::placement::Buckets;
use openfleet_table::aggregate::{DenseMean, SparseMean, SparsePart};
use openfleet_table::checkpoint::{DenseCut, GroupWork, SparseCut, TableCuts, Work};
use openfleet_table::ledger::{Applied, Covered, Ledger};
use openfleet_table::sparse::Scratch;
use openfleet_table::{Accessor, DenseTable, Missing, Shrunk, SparseTable, clip};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use serde::{Deserialize, Serialize};

use super::description::Description;
use super::geo::GeoState;
use crate::error::{Error, Result};
use crate::floats;
use crate::frame::Payload;
use crate::gradients::{self, PushView, PushedStage};
use crate::handshake::Nonce;

/// A sparse table with its name.
pub struct NamedSparse {
    pub(super) name: String,
    /// The rows.
    pub table: Arc<SparseTable>,
}

/// A dense block with its name.
pub struct NamedDense {
    pub(super) name: String,
    /// The values.
    pub table: DenseTable,
}

impl NamedSparse {
    /// The table's error, with its name.
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
    /// The block's error, with its name.
    pub fn error(&self, action: &'static str, source: openfleet_table::Error) -> Error {
        Error::Table { action, table: self.name.clone(), source }
    }
}

/// What is to shrink, and how far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shrink {
    /// One sparse table by name, or all of them.
    pub table: Option<String>,
    /// What the caller counts time in, a day or a pass: the moment up to which ages are counted, and the stamp of rows
    /// that are touched from now on. Without it a pass ends here: it is one more than the last time.
    pub now: Option<u32>,
    /// Rows that were last touched longer ago than this are removed; `u32::MAX` spares every age.
    pub max_age: u32,
    /// Whether a day ends here: with the ctr accessor, one more that a row was not seen.
    pub end_of_day: bool,
}

impl Shrink {
    /// To one table.
    pub fn apply(&self, table: &SparseTable) -> Shrunk {
        if self.end_of_day {
            table.end_of_day();
        }
        let now = self.now.unwrap_or_else(|| table.latest_stamp().saturating_add(1));
        let shrunk = table.shrink(now, self.max_age);
        table.set_stamp(now);
        shrunk
    }
}

impl Default for Shrink {
    /// All tables; only what their accessors say.
    fn default() -> Self {
        Shrink { table: None, now: None, max_age: u32::MAX, end_of_day: false }
    }
}

/// The data plane.
#[derive(Default)]
pub(crate) struct Tables {
    current: RwLock<TableSet>,
    /// One lock a stream: a repeat waits until the first is applied or refused.
    streams: Mutex<HashMap<u32, Arc<Mutex<Stream>>>>,
    /// Read-locked while a table changes. Closed for all work but a target's while servers are brought to one moment.
    gate: RwLock<Option<Option<Work>>>,
    /// The last shrinks and their results, for repeats. Locked while one runs: a repeat waits for the first.
    shrinks: Mutex<VecDeque<(Nonce, Shrunk)>>,
    /// Buffers of the means of groups' steps.
    means: Mutex<Means>,
    scratches: Mutex<Vec<Scratch>>,
    /// What each worker holds of the dense values, where only differences travel.
    dense_copies: Mutex<HashMap<u32, Arc<Mutex<DenseCopy>>>>,
    repeats: AtomicU64,
}

/// What a worker holds after the answer of this number.
#[derive(Default)]
struct DenseCopy {
    number: u64,
    values: Vec<Vec<f32>>,
    answer: Payload,
}

/// The tables of a program.
#[derive(Default)]
pub(super) struct TableSet {
    pub(super) description: Option<Description>,
    pub(super) sparse: Vec<Arc<NamedSparse>>,
    pub(super) dense: Vec<Arc<NamedDense>>,
    /// Where workers train on copies: what each has yet to hear of.
    pub(super) geo: Option<Arc<GeoState>>,
}

#[derive(Default)]
struct Means {
    dense: DenseMean,
    sparse: BTreeMap<u32, SparseMean>,
}

/// The mean gradients of a step, of one table.
enum Mean<'a> {
    Rows(&'a NamedSparse, SparsePart<'a>),
    Block(&'a NamedDense, &'a [f32]),
}

/// Gradients multiplied by a factor below 1; as they are for any other.
fn scale_into<'a>(gradients: &'a [f32], factor: f32, scaled: &'a mut Vec<f32>) -> &'a [f32] {
    if factor >= 1.0 {
        return gradients;
    }
    scaled.clear();
    scaled.extend_from_slice(gradients);
    clip::scale(scaled, factor);
    scaled
}

/// What is known of a stream.
#[derive(Default)]
struct Stream {
    ledger: Ledger,
    /// GEO: the answer to the last exchange, for a repeat.
    last_answer: Option<(u64, Payload)>,
}

/// Shrinks whose repeats are recognised; workers ask for one after the other.
const KEPT_SHRINKS: usize = 64;

/// The most bytes of an answer: a short request can name one table and one key many times over.
const LONGEST_ANSWER: u64 = 1 << 30;

/// Fails if so many more floats would make an answer too long; before they are allocated.
pub(crate) fn check_answer(reply: &Payload, floats: usize) -> Result<()> {
    let length = (reply.bytes().len() as u64).saturating_add((floats as u64).saturating_mul(4));
    if length <= LONGEST_ANSWER { Ok(()) } else { Err(Error::TooLong { length, cap: LONGEST_ANSWER }) }
}

/// May change tables until it is dropped: a snapshot waits for that.
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
    /// For whoever changes a table.
    pub(crate) fn permit(&self) -> GatePermit<'_> {
        GatePermit(self.gate.read())
    }

    /// Closes or opens the gate.
    pub(super) fn set_gate(&self, gate: Option<Option<Work>>) {
        *self.gate.write() = gate;
    }

    /// Runs `look` while nothing changes.
    pub(super) fn while_still<R>(&self, look: impl FnOnce() -> R) -> R {
        let _gate = self.gate.write();
        look()
    }

    /// The tables, to be read.
    pub(super) fn current(&self) -> RwLockReadGuard<'_, TableSet> {
        self.current.read()
    }

    /// Takes other tables.
    pub(super) fn replace(&self, change: impl FnOnce(&mut TableSet)) {
        change(&mut self.current.write());
    }

    /// No tables, and nothing applied but this.
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

    /// What each worker has yet to hear of, where workers train on copies.
    pub(crate) fn geo(&self) -> Option<Arc<GeoState>> {
        self.current.read().geo.clone()
    }

    /// Working memory for one request; give it back.
    pub(crate) fn scratch(&self) -> Scratch {
        self.scratches.lock().pop().unwrap_or_default()
    }

    /// Gives working memory back.
    pub(crate) fn put_scratch(&self, scratch: Scratch) {
        self.scratches.lock().push(scratch);
    }

    /// Writes the values of blocks, as answers carry them.
    fn put_values(&self, blocks: impl Iterator<Item = u32>, reply: &mut Payload) -> Result<()> {
        for block in blocks {
            let block = self.dense(block)?;
            check_answer(reply, block.table.len())?;
            let values = reply.room::<f32>(block.table.len());
            block.table.pull(values).map_err(|error| block.error("pulling from", error))?;
        }
        Ok(())
    }

    /// Writes by how much blocks differ from what a worker holds of them: narrow, where that is known, else the values as they are.
    ///
    /// `held` is the number of the last answer that the worker has added; 0 for none. A repeat is answered as before.
    pub(crate) fn put_changes(&self, worker: u32, held: u64, blocks: &[u32]) -> Result<Payload> {
        let known = self.dense_copies.lock().entry(worker).or_default().clone();
        let mut known = known.lock();
        if held != 0 && known.number == held + 1 {
            return Ok(known.answer.clone());
        }
        let is_known = held != 0 && known.number == held && known.values.len() == blocks.len();
        let mut answer = Payload::new();
        answer.put(&[known.number + 1, u64::from(is_known)]);
        // Whatever ends this early, the next answer has whole values.
        let mut values = std::mem::take(&mut known.values);
        values.resize(blocks.len(), Vec::new());
        for (&block, held) in blocks.iter().zip(&mut values) {
            let block = self.dense(block)?;
            check_answer(&answer, block.table.len())?;
            let mut newest = vec![0.0; block.table.len()];
            block.table.pull(&mut newest).map_err(|error| block.error("pulling from", error))?;
            if is_known {
                floats::put_differences(&mut answer, &newest, held);
            } else {
                answer.put(&newest);
                *held = newest;
            }
        }
        *known = DenseCopy { number: known.number + 1, values, answer: answer.clone() };
        Ok(answer)
    }

    /// The values that a push asked for.
    pub(crate) fn values_wanted(&self, push: &Payload) -> Result<Payload> {
        self.values_of(&gradients::wanted(push.bytes())?)
    }

    /// The values of blocks.
    pub(crate) fn values_of(&self, blocks: &[u32]) -> Result<Payload> {
        let mut reply = Payload::new();
        self.put_values(blocks.iter().copied(), &mut reply)?;
        Ok(reply)
    }

    /// Fails unless everything in a push fits its table. Asked before anything is applied: half a push that was applied
    /// would be applied again when the client repeats it, and a misfit must not spoil the step of a whole group.
    pub(crate) fn check_push(&self, view: &PushView<'_>) -> Result<()> {
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

    /// Applies a push that waits for nobody, once.
    pub(crate) fn push(&self, _passing: &GatePermit<'_>, view: &PushView<'_>) -> Result<()> {
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

    /// A request was recognised as a repeat.
    pub(crate) fn repeated(&self) {
        self.repeats.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that were recognised as repeats.
    pub(crate) fn repeats(&self) -> u64 {
        self.repeats.load(Ordering::Relaxed)
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

    /// Applies a step of a group: all gradients in the order of the streams, divided by how many took part, and scaled.
    pub(crate) fn apply_step(&self, pushes: &[&Payload], factor: f32) -> Result<()> {
        let (mut scratch, mut scaled) = (self.scratch(), Vec::new());
        self.each_mean(pushes, |mean| match mean {
            Mean::Rows(table, SparsePart { keys, gradients, show_click }) => {
                let gradients = scale_into(gradients, factor, &mut scaled);
                let pushed = table.table.push_with(keys, gradients, show_click, &mut scratch);
                pushed.map(drop).map_err(|e| table.error("pushing to", e))
            }
            Mean::Block(block, gradient) => {
                let pushed = block.table.push(scale_into(gradient, factor, &mut scaled));
                pushed.map(drop).map_err(|e| block.error("pushing to", e))
            }
        })?;
        self.put_scratch(scratch);
        Ok(())
    }

    /// The sum of the squares of a step's mean gradients, of those that are here.
    pub(crate) fn measure_step(&self, pushes: &[&Payload]) -> Result<f64> {
        let mut squares = 0.0;
        self.each_mean(pushes, |mean| {
            squares += clip::sum_of_squares(match mean {
                Mean::Rows(_, SparsePart { gradients, .. }) => gradients,
                Mean::Block(_, gradient) => gradient,
            });
            Ok(())
        })?;
        Ok(squares)
    }

    /// Shows the mean gradients of a step: of each table's rows in the order of the tables, then of each block.
    fn each_mean(&self, pushes: &[&Payload], mut show: impl FnMut(Mean<'_>) -> Result<()>) -> Result<()> {
        let took_part = pushes.len();
        let views = pushes.iter().map(|payload| PushView::decode(payload.bytes())).collect::<Result<Vec<_>>>()?;
        // Table number -> (keys, gradients) of each stream, in order.
        let mut tables: BTreeMap<u32, Vec<SparsePart<'_>>> = BTreeMap::new();
        let mut blocks: BTreeMap<u32, Vec<&[f32]>> = BTreeMap::new();
        for view in &views {
            for PushedStage { keys, gradients, show_click } in &view.stages {
                for (&table, gradients) in keys.tables.iter().zip(gradients) {
                    let part = SparsePart { keys: keys.keys, gradients, show_click: *show_click };
                    tables.entry(table).or_default().push(part);
                }
            }
            for (block, gradient) in &view.blocks {
                blocks.entry(*block).or_default().push(gradient);
            }
        }
        let mut means = self.means.lock();
        for (number, parts) in tables {
            let table = self.sparse(number)?;
            let new_mean = || match table.table.spec().accessor {
                Accessor::Plain => SparseMean::new(table.table.dim()),
                Accessor::Ctr(_) => SparseMean::counting(table.table.dim()),
            };
            let mean = means.sparse.entry(number).or_insert_with(new_mean);
            let merged = mean.mean(took_part, parts).map_err(|e| table.error("merging pushes to", e))?;
            show(Mean::Rows(&table, merged))?;
        }
        for (number, gradients) in blocks {
            let block = self.dense(number)?;
            let mean = means
                .dense
                .mean(took_part, gradients.iter().copied())
                .map_err(|e| block.error("merging pushes to", e))?;
            show(Mean::Block(&block, mean))?;
        }
        Ok(())
    }

    /// GEO: adds a worker's differences and tells it what others changed, once.
    pub(crate) fn exchange(&self, _passing: &GatePermit<'_>, worker: u32, view: &PushView<'_>) -> Result<Payload> {
        let Some(geo) = self.geo() else { return Err(Error::UnknownTable { table: 0, count: 0 }) };
        let stream = self.stream(view.work.stream);
        let mut stream = stream.lock();
        if let Some((step, answer)) = &stream.last_answer
            && *step == view.work.first_step
        {
            self.repeated();
            return Ok(answer.clone());
        }
        let applied = stream.ledger.try_apply_once(view.work, || self.add_differences(&geo, worker, view))?;
        match applied {
            Applied::Now(answer) => {
                geo.set_complete(worker, false);
                stream.last_answer = Some((view.work.first_step, answer.clone()));
                Ok(answer)
            }
            Applied::Before | Applied::Part => {
                Err(Error::Overlap { stream: view.work.stream, first: view.work.first_step, last: view.work.last_step })
            }
        }
    }

    fn add_differences(&self, geo: &GeoState, worker: u32, view: &PushView<'_>) -> Result<Payload> {
        let mut scratch = self.scratch();
        for PushedStage { keys, gradients: differences, .. } in &view.stages {
            for ((&number, &dim), differences) in keys.tables.iter().zip(keys.dims).zip(differences) {
                let table = self.sparse(number)?;
                table.check_dim(dim)?;
                table.table.add(keys.keys, differences, &mut scratch).map_err(|e| table.error("adding to", e))?;
                geo.changed(number)?.lock().record(worker, keys.keys);
            }
        }
        for (number, difference) in &view.blocks {
            let block = self.dense(*number)?;
            block.table.add(difference).map_err(|e| block.error("adding to", e))?;
        }
        let mut answer = Payload::new();
        answer.put(&[geo.wanted_of(worker)]);
        let count = self.current.read().sparse.len() as u32;
        for number in 0..count {
            let table = self.sparse(number)?;
            let mut keys = geo.changed(number)?.lock().take_changed(worker);
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
        self.put_values(view.blocks.iter().map(|&(block, _)| block), &mut answer)?;
        Ok(answer)
    }

    /// GEO: everything that a worker has learnt up to these steps of its streams is in the tables.
    pub(crate) fn geo_flushed(&self, _passing: &GatePermit<'_>, worker: u32, positions: &[(u32, u64)]) {
        for &(stream, position) in positions.iter().filter(|(_, position)| *position > 0) {
            let known = self.stream(stream);
            let mut known = known.lock();
            let first_step = known.ledger.position(stream);
            if first_step < position {
                let work = WorkId { stream, first_step, last_step: position - 1 };
                let _ = known.ledger.apply_once(work, || ());
            }
        }
        if let Some(geo) = self.geo() {
            geo.set_complete(worker, true);
        }
    }

    /// GEO: a worker starts again with empty copies; its exchanges are numbered from zero again.
    pub(crate) fn forget_exchanges(&self, worker: u32, stream: u32) {
        self.streams.lock().remove(&stream);
        if let Some(geo) = self.geo() {
            geo.forget(worker);
        }
    }

    fn stream(&self, stream: u32) -> Arc<Mutex<Stream>> {
        self.streams.lock().entry(stream).or_default().clone()
    }

    /// What streams have applied that wait for nobody.
    pub(crate) fn applied(&self) -> Ledger {
        let mut applied = Ledger::new();
        let streams = self.streams.lock().clone();
        streams.values().for_each(|stream| applied.merge(&stream.lock().ledger));
        applied
    }

    /// What has been applied, with that of groups.
    pub(crate) fn work(&self, groups: Vec<GroupWork>) -> Work {
        Work { streams: self.applied(), groups }
    }

    /// Shrinks one sparse table or all, once for each `id`.
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

    /// Runs `work` unless rows are being removed.
    pub(super) fn unless_shrinking<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        let _no_shrink = self.shrinks.try_lock()?;
        Some(work())
    }

    /// Copies dense blocks and marks sparse tables; nothing changes meanwhile.
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
            // The rule that runs here; GEO's runs on the workers.
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
