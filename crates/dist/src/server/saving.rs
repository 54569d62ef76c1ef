//! Saving and loading on the server: the gate that brings all servers to one moment, and what is written then.
//!
//! ```text
//!          prepare                     cut: all of the target is applied
//! open ------------> closed, no target ---------------------------------> marked, open again
//!   ^                     |    cut: some of it is on its way                  |
//!   |                     +------> closed, with a target ---------------------+
//!   +--- release, or nobody asked for a while ---+
//! ```
//!
//! While the gate is closed, pushes of streams that nobody waits for are held back, but for those of the target; streams
//! that step together may push, and only their steps beyond the target are not applied. Pulls go on. At the mark itself
//! everything is excluded that changes tables, for as long as it takes to mark each shard and to copy the dense blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use openfleet_core::WorkId;
use openfleet_core::placement::Buckets;
use openfleet_core::topology::Incarnation;
use openfleet_table::checkpoint::{
    self, DenseCut, Loaded, Manifest, SparseCut, TableCuts, Work, read_dense, read_sparse, read_states_file,
};
use openfleet_table::ledger::{Covered, Ledger};
use openfleet_table::{DenseTable, SparseTable};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::group::Group;
use super::state::{NamedDense, NamedSparse, Outcome, State};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::hands::Threads;
use crate::request::Kind;
use crate::request::create_tables::Tables;
use crate::request::cut::Answer;
use crate::request::load::Load;
use crate::request::save::{Ask, Base};
use crate::storage::{Addresses, Opened, Stores};

/// What a server knows of saves and loads.
pub(super) struct Saving {
    stores: Arc<dyn Stores>,
    /// Read-locked while a table changes.
    gate: RwLock<Option<Closed>>,
    /// How often the gate was closed, by which a late release is known as one.
    closings: Mutex<u64>,
    held: Mutex<Vec<Held>>,
    /// Cuts that were made or given up: what still comes of them is late, and must not close the gate again.
    over: Mutex<VecDeque<String>>,
    /// The moment that was marked and is not written yet.
    marked: Mutex<Option<(String, TableCuts)>>,
    /// The last answers, for repeats. Locked while one is worked out: a repeat waits for the first.
    answers: Mutex<VecDeque<(String, &'static str, Remembered)>>,
    /// Where tables that are made take their rows from.
    pub(super) resume: Mutex<Option<Load>>,
    /// What the program kept beside the tables that were taken from there, for every worker that asks for tables.
    pub(super) states: Mutex<Vec<u8>>,
}

/// An answer, or what went wrong in words.
type Remembered = std::result::Result<Payload, String>;

/// Why pushes are held back.
struct Closed {
    id: String,
    closing: u64,
    target: Option<Work>,
}

/// A push that is held back.
struct Held {
    worker: u32,
    /// Of the worker, when it came.
    incarnation: Option<Incarnation>,
    work: WorkId,
    kind: Kind,
    payload: Payload,
    answer: oneshot::Sender<Result<Payload>>,
}

/// Tables from a checkpoint.
pub(super) struct Restored {
    pub(super) sparse: Vec<Arc<NamedSparse>>,
    pub(super) dense: Vec<Arc<NamedDense>>,
    /// What has been applied, if the job is still divided as it was.
    pub(super) work: Option<Work>,
}

/// Cuts that are remembered.
const KEPT_CUTS: usize = 256;

/// Answers that are remembered: those of a few saves.
const KEPT_ANSWERS: usize = 16;

impl Default for Saving {
    fn default() -> Self {
        Saving::new(Arc::new(Addresses))
    }
}

impl Saving {
    pub(super) fn new(stores: Arc<dyn Stores>) -> Self {
        Saving {
            stores,
            gate: RwLock::default(),
            closings: Mutex::default(),
            held: Mutex::default(),
            over: Mutex::default(),
            marked: Mutex::default(),
            answers: Mutex::default(),
            resume: Mutex::default(),
            states: Mutex::default(),
        }
    }

    fn end_cut(&self, id: &str) {
        let mut over = self.over.lock();
        over.push_back(id.to_owned());
        if over.len() > KEPT_CUTS {
            over.pop_front();
        }
    }
}

/// May change tables until it is dropped.
pub(crate) struct Passing<'a> {
    gate: RwLockReadGuard<'a, Option<Closed>>,
}

impl Closed {
    fn lets_through(&self, work: WorkId) -> bool {
        self.target.as_ref().is_some_and(|target| target.streams.is_applied(work) == Covered::All)
    }
}

impl State {
    /// A server that keeps checkpoints elsewhere than in directories and buckets.
    pub fn with_stores(stores: Arc<dyn Stores>) -> Self {
        let mut state = State::new();
        state.saving = Saving::new(stores);
        state
    }

    /// Tables that are made from now on take their rows from a checkpoint. Fails where there is none; nothing else is
    /// compared before the tables are known.
    pub fn resume_from(&self, address: &str, partial: bool) -> Result<Manifest> {
        let Opened { manifest, .. } = Opened::new(self.saving.stores.as_ref(), address, "loading")?;
        *self.saving.resume.lock() = Some(Load { address: address.to_owned(), partial });
        Ok(manifest)
    }

    /// For whoever changes a table: a cut waits until this is dropped.
    pub(crate) fn passing(&self) -> Passing<'_> {
        Passing { gate: self.saving.gate.read() }
    }

    /// Whether some work has to wait.
    pub(super) fn is_held_back(&self, passing: &Passing<'_>, work: WorkId) -> bool {
        passing.gate.as_ref().is_some_and(|closed| !closed.lets_through(work))
    }

    /// Keeps a push until the gate opens. Called with the gate passed, so that nobody opens it in between.
    pub(super) fn hold_back(
        &self,
        _passing: &Passing<'_>,
        worker: u32,
        work: WorkId,
        kind: Kind,
        payload: Payload,
    ) -> Outcome {
        let (answer, receiver) = oneshot::channel();
        let incarnation = self.newest_incarnation(worker);
        self.saving.held.lock().push(Held { worker, incarnation, work, kind, payload, answer });
        Outcome::Later(receiver)
    }

    /// Holds pushes back, and says what has been applied.
    pub(crate) fn prepare_cut(&self, id: &str) -> Result<Answer> {
        let Some(_no_shrink) = self.shrinks.try_lock() else {
            return Ok(Answer::Busy("rows are being removed".into()));
        };
        let is_writing = self.saving.answers.try_lock().is_none();
        if is_writing || self.saving.marked.lock().as_ref().is_some_and(|(marked, _)| marked != id) {
            return Ok(Answer::Busy("another checkpoint is being written".into()));
        }
        if self.tables.read().description.is_none() {
            return Err(Error::NothingToSave);
        }
        let mut groups = self.groups.lock();
        let mut gate = self.saving.gate.write();
        if self.saving.over.lock().iter().any(|over| over == id) {
            return Err(Error::CutOver);
        }
        if gate.as_ref().is_some_and(|closed| closed.id != id) {
            return Ok(Answer::Busy("another checkpoint is being prepared".into()));
        }
        let mut closings = self.saving.closings.lock();
        *closings += 1;
        *gate = Some(Closed { id: id.to_owned(), closing: *closings, target: None });
        groups.iter_mut().for_each(Group::freeze);
        Ok(Answer::Prepared(self.work(&groups)))
    }

    /// Marks the moment, if everything that any server has applied is applied here; for what has changed since a save, or
    /// for everything.
    pub(crate) fn cut(&self, id: &str, target: &Work, since: Option<&str>) -> Result<Answer> {
        if self.saving.marked.lock().as_ref().is_some_and(|(marked, _)| marked == id) {
            return Ok(Answer::Done);
        }
        match &mut *self.saving.gate.write() {
            Some(closed) if closed.id == id => closed.target = Some(target.clone()),
            _ => return Err(Error::CutOver),
        }
        let on_its_way = {
            let mut held = self.saving.held.lock();
            let is_wanted = |held: &mut Held| target.streams.is_applied(held.work) == Covered::All;
            held.extract_if(.., is_wanted).collect::<Vec<_>>()
        };
        on_its_way.into_iter().for_each(|held| self.pass(held));
        let Some(_no_shrink) = self.shrinks.try_lock() else {
            return Ok(Answer::NotYet(Work::default()));
        };
        let mut groups = self.groups.lock();
        for group in groups.iter_mut() {
            group.go_on_to(self, target);
        }
        // From here on nothing changes: groups apply with their lock held, all others pass the gate.
        let mut gate = self.saving.gate.write();
        if gate.as_ref().is_none_or(|closed| closed.id != id) {
            return Err(Error::CutOver);
        }
        let work = self.work(&groups);
        if work != *target {
            return Ok(Answer::NotYet(work));
        }
        let cuts = self.mark(work, since)?;
        *self.saving.marked.lock() = Some((id.to_owned(), cuts));
        self.saving.end_cut(id);
        *gate = None;
        drop(gate);
        groups.iter_mut().for_each(|group| group.thaw(self));
        drop(groups);
        self.pass_all();
        Ok(Answer::Done)
    }

    /// A save comes to nothing: everything goes on, and what was marked is forgotten.
    pub(crate) fn release_cut(&self, id: &str) {
        // Noted first: a prepare that was overtaken finds it.
        self.saving.end_cut(id);
        self.saving.marked.lock().take_if(|(marked, _)| marked == id);
        self.open_gate(|closed| closed.id == id);
    }

    /// By which the present closing of the gate is known.
    pub(super) fn closing(&self) -> Option<u64> {
        self.saving.gate.read().as_ref().map(|closed| closed.closing)
    }

    /// Opens the gate after a while, unless it was opened since: whoever closed it may be dead.
    pub(super) fn open_late(&self, closing: u64) {
        if self.open_gate(|closed| closed.closing == closing) {
            warn!("pushes were held back for a checkpoint that nobody goes on with; they pass now");
        }
    }

    fn open_gate(&self, is_it: impl FnOnce(&Closed) -> bool) -> bool {
        let mut groups = self.groups.lock();
        let mut gate = self.saving.gate.write();
        if !gate.as_ref().is_some_and(is_it) {
            return false;
        }
        *gate = None;
        drop(gate);
        groups.iter_mut().for_each(|group| group.thaw(self));
        drop(groups);
        self.pass_all();
        true
    }

    fn pass_all(&self) {
        let held = std::mem::take(&mut *self.saving.held.lock());
        held.into_iter().for_each(|held| self.pass(held));
    }

    /// Applies a push that was held back, unless a newer incarnation of its worker was let in since.
    fn pass(&self, Held { worker, incarnation, kind, payload, answer, .. }: Held) {
        let newest = self.incarnation_of(worker);
        // Recursive: the request that opens the gate may be of the same worker and hold it already, and must not wait for a
        // new connection of it that waits for this very request.
        let newest = newest.as_ref().map(|newest| newest.read_recursive());
        if let Some(incarnation) = incarnation
            && newest.as_deref() != Some(&incarnation)
        {
            let _ = answer.send(Err(Error::Replaced { rank: worker, incarnation }));
            return;
        }
        match self.handle(worker, kind, payload) {
            Outcome::Now(result) => drop(answer.send(result)),
            // The gate was closed again a moment ago.
            Outcome::Later(receiver) => drop(std::thread::spawn(move || {
                if let Ok(result) = receiver.blocking_recv() {
                    let _ = answer.send(result);
                }
            })),
        }
    }

    /// What has been applied.
    fn work(&self, groups: &[Group]) -> Work {
        let mut streams = Ledger::new();
        let ledgers = self.ledgers.lock().clone();
        ledgers.values().for_each(|stream| streams.merge(&stream.lock().ledger));
        Work { streams, groups: groups.iter().map(Group::work).collect() }
    }

    /// Copies dense blocks and marks sparse tables; nothing changes meanwhile.
    fn mark(&self, work: Work, since: Option<&str>) -> Result<TableCuts> {
        let kept = self.tables.read();
        let Some(tables) = &kept.description else { return Err(Error::NothingToSave) };
        let here = &tables.here;
        if here.blocks.len() != kept.dense.len() {
            return Err(Error::Damaged { what: "description of tables: it does not say where blocks belong" });
        }
        let buckets = Buckets::new(here.servers as usize)?.range(here.server as usize);
        let mut sparse = Vec::with_capacity(kept.sparse.len());
        for named in &kept.sparse {
            let cut = named.table.cut_since(since).map_err(|error| named.error("marking", error))?;
            sparse.push(SparseCut { name: named.name.clone(), cut, without_state: false });
        }
        let mut dense = Vec::with_capacity(kept.dense.len());
        for (named, &(parameter, offset)) in kept.dense.iter().zip(&here.blocks) {
            let Some((name, spec)) = here.parameters.get(parameter as usize) else {
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
        Ok(TableCuts { server: here.server, buckets, sparse, dense, work })
    }

    /// Does a part of a save, once.
    pub(crate) fn save(&self, ask: Ask) -> Result<Payload> {
        let mut answers = self.saving.answers.lock();
        let (id, stage) = ask.key();
        if let Some((.., answer)) = answers.iter().find(|(known, did, _)| known == id && *did == stage) {
            return answer.clone().map_err(|message| Error::Background { message });
        }
        let id = id.to_owned();
        let answer = self.save_now(ask);
        let kept = answer.as_ref().map(Payload::clone).map_err(|error| openfleet_core::error::report(error));
        answers.push_back((id, stage, kept));
        if answers.len() > KEPT_ANSWERS {
            answers.pop_front();
        }
        answer
    }

    fn save_now(&self, ask: Ask) -> Result<Payload> {
        let open = |address: &str| self.saving.stores.open(address);
        let failed = |address: &str| Error::checkpoint("saving to", address);
        let mut reply = Payload::new();
        let mut put = |json: serde_json::Result<Vec<u8>>| {
            reply.put(&json.map_err(|_| Error::Damaged { what: "answer to a save" })?);
            Ok::<_, Error>(())
        };
        match ask {
            Ask::Begin { address, id, replace, delta } => {
                let storage = open(&address)?;
                if delta {
                    let standing = checkpoint::find_manifest(storage.as_ref()).map_err(failed(&address))?;
                    let base = |standing: Manifest| Base { moment: standing.moment().to_owned(), id: standing.id };
                    put(serde_json::to_vec(&standing.map(base)))?;
                }
                checkpoint::begin(storage.as_ref(), &id, replace || delta).map_err(failed(&address))?;
            }
            Ask::Write { address, id, cut, only, without_state } => {
                let Some((_, mut cuts)) = self.saving.marked.lock().take_if(|(marked, _)| *marked == cut) else {
                    return Err(Error::CutOver);
                };
                cuts.keep_only(&only);
                if without_state {
                    cuts.drop_state();
                }
                let part = checkpoint::write_part(open(&address)?.as_ref(), &id, cuts).map_err(failed(&address))?;
                put(serde_json::to_vec(&part))?;
            }
            Ask::Commit { address, commit } => {
                let manifest = checkpoint::commit(open(&address)?.as_ref(), *commit).map_err(failed(&address))?;
                info!("checkpoint {} of step {} is in {address}", manifest.id, manifest.step);
                put(serde_json::to_vec(&manifest))?;
            }
            Ask::Abandon { address, id } => checkpoint::abandon(open(&address)?.as_ref(), &id),
        }
        Ok(reply)
    }

    /// Takes tables from a checkpoint: those that are there, in one moment, or those that will be made.
    /// What the program kept beside them is the answer.
    pub(crate) fn load(&self, load: &Load) -> Result<Vec<u8>> {
        let Some(tables) = self.tables.read().description.clone() else {
            self.resume_from(&load.address, load.partial)?;
            return self.saved_states(&load.address);
        };
        let states = self.saved_states(&load.address)?;
        let restored = self.restore(&tables, load)?;
        let mut groups = self.groups.lock();
        let _gate = self.saving.gate.write();
        let mut kept = self.tables.write();
        if kept.copies.is_some() || groups.iter().any(Group::is_training) {
            return Err(Error::LoadWhileTraining);
        }
        (kept.sparse, kept.dense) = (restored.sparse, restored.dense);
        if let Some(work) = &restored.work {
            self.restore_work(work, &mut groups);
        }
        Ok(states)
    }

    pub(super) fn saved_states(&self, address: &str) -> Result<Vec<u8>> {
        Opened::new(self.saving.stores.as_ref(), address, "loading")?.read(read_states_file)
    }

    /// Makes this server's part of a program's tables from a checkpoint.
    pub(super) fn restore(&self, tables: &Tables, load: &Load) -> Result<Restored> {
        let opened = Opened::new(self.saving.stores.as_ref(), &load.address, "loading")?;
        let (failed, manifest) = (Error::checkpoint("loading", &load.address), &opened.manifest);
        let here = &tables.here;
        let buckets = Buckets::new(here.servers as usize)?.range(here.server as usize);
        let parameters: Vec<_> = here
            .parameters
            .iter()
            .map(|(name, spec)| (name.clone(), if tables.has_rules() { spec.clone() } else { spec.without_state() }))
            .collect();
        let specs: Vec<_> = tables
            .sparse
            .iter()
            .map(|(name, spec)| (name.clone(), if tables.has_rules() { spec.clone() } else { spec.without_state() }))
            .collect();
        let loaded = Loaded::compare(manifest, &specs, &parameters, load.partial).map_err(&failed)?;
        for left in &loaded.left {
            warn!("loading {}: left out {left:?}", load.address);
        }
        let mut sparse = Vec::with_capacity(specs.len());
        for (name, spec) in specs {
            let table = SparseTable::new(spec).map_err(&failed)?;
            let saved = manifest.sparse.iter().find(|saved| saved.name == name && loaded.takes_values(&name));
            if let Some(saved) = saved {
                let with_state = loaded.takes_state(&name);
                let hands = Threads::of_this_machine();
                opened.read(|storage, manifest| {
                    read_sparse(storage, manifest, saved, buckets.clone(), &table, with_state, &hands)
                })?;
            }
            sparse.push(Arc::new(NamedSparse { name, table: Arc::new(table) }));
        }
        let values = if tables.dense.is_empty() { Default::default() } else { opened.read(read_dense)? };
        let mut dense = Vec::with_capacity(tables.dense.len());
        for (number, (name, spec)) in tables.dense.iter().enumerate() {
            let spec = if tables.has_rules() { spec.clone() } else { spec.without_state() };
            let table = DenseTable::new(spec).map_err(&failed)?;
            let place = here.blocks.get(number);
            let place = place.and_then(|&(at, offset)| Some((here.parameters.get(at as usize)?, offset as usize)));
            let saved = place.and_then(|((parameter, _), offset)| {
                let saved = values.get(parameter).filter(|_| loaded.takes_values(parameter))?;
                let (values, state) = saved.block(offset, table.len())?;
                Some((values, state, loaded.takes_state(parameter).then_some(saved.step)))
            });
            match saved {
                Some((values, state, Some(step))) => table.restore(values, &state, step).map_err(&failed)?,
                Some((values, _, None)) => table.assign(values).map_err(&failed)?,
                None => {}
            }
            dense.push(Arc::new(NamedDense { name: name.clone(), table }));
        }
        let is_same = manifest.mode == tables.mode.to_string()
            && (manifest.workers, manifest.threads) == (tables.workers, tables.threads);
        if !is_same {
            warn!(
                "the checkpoint is of mode {} with {} workers of {} threads: streams begin at step 0 again",
                manifest.mode, manifest.workers, manifest.threads
            );
        }
        info!("took step {} from {}", manifest.step, load.address);
        Ok(Restored { sparse, dense, work: is_same.then_some(opened.manifest.work) })
    }

    /// Goes on from what has been applied.
    pub(super) fn restore_work(&self, work: &Work, groups: &mut [Group]) {
        let mut ledgers = self.ledgers.lock();
        ledgers.clear();
        for (stream, ledger) in work.streams.by_stream() {
            ledgers.entry(stream).or_default().lock().ledger = ledger;
        }
        drop(ledgers);
        for group in groups {
            work.groups.iter().for_each(|saved| group.restore(saved));
        }
    }
}
