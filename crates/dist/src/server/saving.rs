//! Saving and loading checkpoints on the server: taking a snapshot, writing it, and reading tables back.
//!
//! The coordinator decides who may save, and when pushes are held back; this file handles tables and files.

use std::collections::VecDeque;
use std::sync::Arc;

use openfleet_core::placement::Buckets;
use openfleet_table::checkpoint::{
    self, Commit, Loaded, Manifest, ServerPart, TableCuts, Work, read_dense, read_sparse, read_states_file,
};
use openfleet_table::{DenseTable, SparseTable};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::coordinator::CutAnswer;
use super::description::Description;
use super::entry::Cut;
use super::state::{Caller, State, now};
use super::tables::{NamedDense, NamedSparse};
use crate::error::{Error, Result};
use crate::frame::Payload;
use crate::storage::{Addresses, Opened, Stores};
use crate::threads::Threads;

/// State of saves and loads.
pub(super) struct Saving {
    pub(super) stores: Arc<dyn Stores>,
    /// A snapshot that was taken and is not written yet, and its id.
    pub(super) marked: Mutex<Option<(String, TableCuts)>>,
    /// The last replies, for repeated requests. Locked while a reply is computed: a repeat waits for the original.
    answers: Mutex<VecDeque<(String, &'static str, RecordedAnswer)>>,
    /// The checkpoint that new tables are loaded from.
    pub(super) resume: Mutex<Option<Load>>,
    /// The program's own state from that checkpoint, for every worker that creates tables.
    pub(super) states: Mutex<Vec<u8>>,
}

/// A reply, or the text of an error.
type RecordedAnswer = std::result::Result<Payload, String>;

/// A checkpoint to load tables from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Where the checkpoint is stored.
    pub address: String,
    /// Whether to skip what does not fit instead of failing.
    pub partial: bool,
}

/// What a server takes from the checkpoint it begins from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// Its values. Its positions are used only in the run that wrote it.
    Values,
    /// Its values and positions, continuing the run that wrote it.
    Run,
}

/// Tables that were loaded from a checkpoint, or created.
pub(super) struct Restored {
    pub(super) sparse: Vec<Arc<NamedSparse>>,
    pub(super) dense: Vec<Arc<NamedDense>>,
}

/// Number of recorded replies: those of a few saves.
const KEPT_ANSWERS: usize = 16;

impl Default for Saving {
    fn default() -> Self {
        Saving::new(Arc::new(Addresses))
    }
}

impl Saving {
    fn new(stores: Arc<dyn Stores>) -> Self {
        Saving {
            stores,
            marked: Mutex::default(),
            answers: Mutex::default(),
            resume: Mutex::default(),
            states: Mutex::default(),
        }
    }

    /// Discards a snapshot.
    pub(super) fn forget(&self, id: &str) {
        self.marked.lock().take_if(|(marked, _)| marked == id);
    }
}

impl State {
    /// A server that opens checkpoints through `stores`, instead of directories and buckets.
    pub fn with_stores(stores: Arc<dyn Stores>) -> Self {
        State::with_saving(Saving::new(stores))
    }

    /// Sets the id of the run, if the launcher knows it; otherwise the server makes one up.
    pub fn set_run(&self, run: &str) {
        run.clone_into(&mut self.job.lock().run);
    }

    /// Tables that are created from now on are loaded from this checkpoint. Fails if there is none; its contents are compared
    /// only when the tables are known.
    ///
    /// Returns `None`, and ignores the checkpoint, if this run saved it while workers in geo mode had unsent progress: it does
    /// not tell which data it contains, and that data would be trained twice.
    pub fn resume_from(&self, address: &str, resume: Resume) -> Result<Option<Manifest>> {
        let Opened { manifest, .. } = Opened::new(self.saving.stores.as_ref(), address, "loading")?;
        if manifest.run == self.job.lock().run && manifest.position.is_null() {
            return Ok(None);
        }
        *self.saving.resume.lock() = Some(Load { address: address.to_owned(), partial: false });
        self.job.lock().cut = Some(cut_of(&manifest, address, resume == Resume::Run));
        Ok(Some(manifest))
    }

    /// A checkpoint of this run was committed: from now on the server returns to it.
    pub(crate) fn committed(&self, cut: Cut) {
        self.job.lock().cut = Some(cut);
    }

    /// The checkpoint that the server returns to if that is necessary.
    pub fn return_point(&self) -> Option<Cut> {
        self.job.lock().cut.clone()
    }

    /// Holds pushes back, and returns what has been applied.
    pub(crate) fn prepare_cut(&self, caller: Caller, id: &str) -> Result<CutAnswer> {
        if self.saving.answers.try_lock().is_none() {
            return Ok(CutAnswer::Busy("another checkpoint is being written".into()));
        }
        if self.tables.current().description.is_none() {
            return Err(Error::NothingToSave);
        }
        let prepared = self.tables.unless_shrinking(|| {
            let mut control = self.control.lock();
            let (busy, effects) = control.coordinator.prepare_cut(id, State::owner(caller), now())?;
            self.carry_out(&mut control, effects);
            Ok(match busy {
                Some(because) => CutAnswer::Busy(because.into()),
                None => CutAnswer::Prepared(self.tables.work(control.coordinator.group_work())),
            })
        });
        prepared.unwrap_or_else(|| Ok(CutAnswer::Busy("rows are being removed".into())))
    }

    /// Takes the snapshot, if this server has applied everything that any server has applied: of the rows that changed since
    /// save `since`, or of all rows.
    pub(crate) fn cut(&self, id: &str, target: &Work, since: Option<&str>) -> Result<CutAnswer> {
        let mut control = self.control.lock();
        if control.coordinator.is_marked(id) {
            return Ok(CutAnswer::Done);
        }
        let effects = control.coordinator.aim(id, target, now())?;
        self.carry_out(&mut control, effects);
        // From here on nothing changes: groups apply steps with this lock held, and all other pushes need a permit of the gate.
        let marked = self.tables.unless_shrinking(|| {
            self.tables.while_still(|| {
                let work = self.tables.work(control.coordinator.group_work());
                if work != *target {
                    return Ok(Err(work));
                }
                let mut cuts = self.tables.mark(work, since)?;
                // If workers have unsent progress, there is no position to return to.
                let is_complete = self.tables.geo().is_none_or(|geo| geo.are_complete());
                if is_complete {
                    let position = serde_json::to_value(control.coordinator.position());
                    cuts.position = position.map_err(|_| Error::Damaged { what: "position" })?;
                }
                Ok::<_, Error>(Ok(cuts))
            })
        });
        let cuts = match marked.transpose()? {
            None => return Ok(CutAnswer::NotYet(Work::default())),
            Some(Err(work)) => return Ok(CutAnswer::NotYet(work)),
            Some(Ok(cuts)) => cuts,
        };
        *self.saving.marked.lock() = Some((id.to_owned(), cuts));
        let effects = control.coordinator.marked(id);
        self.carry_out(&mut control, effects);
        Ok(CutAnswer::Done)
    }

    /// Aborts a save: pushes continue, and the snapshot is discarded.
    pub(crate) fn release_cut(&self, id: &str) {
        let mut control = self.control.lock();
        let effects = control.coordinator.release_cut(id);
        self.carry_out(&mut control, effects);
    }

    /// Runs one stage of a save once: a repeat gets the reply of the original.
    pub(crate) fn once(
        &self,
        id: &str,
        stage: &'static str,
        work: impl FnOnce() -> Result<Payload>,
    ) -> Result<Payload> {
        let mut answers = self.saving.answers.lock();
        if let Some((.., answer)) = answers.iter().find(|(known, did, _)| known == id && *did == stage) {
            return answer.clone().map_err(|message| Error::Background { message });
        }
        let answer = work();
        let kept = answer.as_ref().map(Payload::clone).map_err(|error| openfleet_core::error::report(error));
        answers.push_back((id.to_owned(), stage, kept));
        if answers.len() > KEPT_ANSWERS {
            answers.pop_front();
        }
        answer
    }

    /// Prepares the address for a save. Returns the existing checkpoint if a delta is wanted.
    pub(crate) fn begin_save(&self, address: &str, id: &str, replace: bool, delta: bool) -> Result<Option<Manifest>> {
        let failed = Error::checkpoint("saving to", address);
        let storage = self.saving.stores.open(address)?;
        let existing = match delta {
            true => checkpoint::find_manifest(storage.as_ref()).map_err(&failed)?,
            false => None,
        };
        checkpoint::begin(storage.as_ref(), id, replace || delta).map_err(failed)?;
        Ok(existing)
    }

    /// Writes a snapshot.
    pub(crate) fn write_save(
        &self,
        address: &str,
        id: &str,
        cut: &str,
        only: &[String],
        without_state: bool,
    ) -> Result<ServerPart> {
        let Some((_, mut cuts)) = self.saving.marked.lock().take_if(|(marked, _)| *marked == cut) else {
            return Err(Error::CutOver);
        };
        self.control.lock().coordinator.written(cut);
        cuts.keep_only(only);
        if without_state {
            cuts.drop_state();
        }
        let storage = self.saving.stores.open(address)?;
        checkpoint::write_part(storage.as_ref(), id, cuts).map_err(Error::checkpoint("saving to", address))
    }

    /// Commits the parts that all servers have written as one checkpoint.
    pub(crate) fn commit_save(&self, address: &str, mut commit: Commit) -> Result<Manifest> {
        commit.run = self.job.lock().run.clone();
        let storage = self.saving.stores.open(address)?;
        let manifest = checkpoint::commit(storage.as_ref(), commit).map_err(Error::checkpoint("saving to", address))?;
        info!("saved checkpoint {} of step {} to {address}", manifest.id, manifest.step);
        Ok(manifest)
    }

    /// Removes the files of an aborted save.
    pub(crate) fn abandon_save(&self, address: &str, id: &str) -> Result<()> {
        checkpoint::abandon(self.saving.stores.open(address)?.as_ref(), id);
        Ok(())
    }

    /// Loads tables from a checkpoint: the existing ones, atomically, or those that will be created. The record of applied
    /// pushes stays. Returns the program's own state.
    pub(crate) fn load(&self, load: &Load) -> Result<Vec<u8>> {
        let Some(tables) = self.tables.current().description.clone() else {
            let states = self.saved_states(&load.address)?;
            *self.saving.resume.lock() = Some(load.clone());
            return Ok(states);
        };
        let states = self.saved_states(&load.address)?;
        let restored = self.restore(&tables, load)?;
        let control = self.control.lock();
        if self.tables.geo().is_some() || control.coordinator.is_training() {
            return Err(Error::LoadWhileTraining);
        }
        self.tables.while_still(|| {
            self.tables.replace(|current| (current.sparse, current.dense) = (restored.sparse, restored.dense));
        });
        Ok(states)
    }

    pub(super) fn saved_states(&self, address: &str) -> Result<Vec<u8>> {
        Opened::new(self.saving.stores.as_ref(), address, "loading")?.read(read_states_file)
    }

    /// Creates this server's part of a program's tables from a checkpoint.
    pub(super) fn restore(&self, tables: &Description, load: &Load) -> Result<Restored> {
        let opened = Opened::new(self.saving.stores.as_ref(), &load.address, "loading")?;
        let (failed, manifest) = (Error::checkpoint("loading", &load.address), &opened.manifest);
        let share = &tables.share;
        let runs_optimizers = tables.team().duties().runs_optimizers;
        let buckets = Buckets::new(share.servers as usize)?.range(share.server as usize);
        let parameters: Vec<_> = share
            .parameters
            .iter()
            .map(|(name, spec)| (name.clone(), if runs_optimizers { spec.clone() } else { spec.without_state() }))
            .collect();
        let specs: Vec<_> = tables
            .sparse
            .iter()
            .map(|(name, spec)| (name.clone(), if runs_optimizers { spec.clone() } else { spec.without_state() }))
            .collect();
        let loaded = Loaded::compare(manifest, &specs, &parameters, load.partial).map_err(&failed)?;
        for left in &loaded.left {
            warn!("loading {}: skipped {left:?}", load.address);
        }
        let mut sparse = Vec::with_capacity(specs.len());
        for (name, spec) in specs {
            let table = SparseTable::new(spec).map_err(&failed)?;
            let saved = manifest.sparse.iter().find(|saved| saved.name == name && loaded.takes_values(&name));
            if let Some(saved) = saved {
                let with_state = loaded.takes_state(&name);
                let parallelism = Threads::of_this_machine();
                opened.read(|storage, manifest| {
                    read_sparse(storage, manifest, saved, buckets.clone(), &table, with_state, &parallelism)
                })?;
            }
            sparse.push(Arc::new(NamedSparse { name, table: Arc::new(table) }));
        }
        let values = if tables.dense.is_empty() { Default::default() } else { opened.read(read_dense)? };
        let mut dense = Vec::with_capacity(tables.dense.len());
        for (number, (name, spec)) in tables.dense.iter().enumerate() {
            let spec = if runs_optimizers { spec.clone() } else { spec.without_state() };
            let table = DenseTable::new(spec).map_err(&failed)?;
            let place = share.blocks.get(number);
            let place = place.and_then(|&(at, offset)| Some((share.parameters.get(at as usize)?, offset as usize)));
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
        info!("loaded step {} from {}", manifest.step, load.address);
        Ok(Restored { sparse, dense })
    }
}

/// Creates new tables: sparse tables are empty, dense blocks get their initial values.
pub(super) fn make(tables: &Description, first_values: &[&[f32]]) -> Result<Restored> {
    let runs_optimizers = tables.team().duties().runs_optimizers;
    let mut sparse = Vec::with_capacity(tables.sparse.len());
    for (name, spec) in &tables.sparse {
        let spec = if runs_optimizers { spec.clone() } else { spec.without_state() };
        let table =
            SparseTable::new(spec).map_err(|source| Error::Table { action: "making", table: name.clone(), source })?;
        sparse.push(Arc::new(NamedSparse { name: name.clone(), table: Arc::new(table) }));
    }
    let mut dense = Vec::with_capacity(tables.dense.len());
    for ((name, spec), values) in tables.dense.iter().zip(first_values) {
        let error = |source| Error::Table { action: "making", table: name.clone(), source };
        let spec = if runs_optimizers { spec.clone() } else { spec.without_state() };
        let table = DenseTable::new(spec).map_err(error)?;
        table.assign(values).map_err(error)?;
        dense.push(Arc::new(NamedDense { name: name.clone(), table }));
    }
    Ok(Restored { sparse, dense })
}

/// A checkpoint as a point to return to.
pub(crate) fn cut_of(manifest: &Manifest, address: &str, adopted: bool) -> Cut {
    Cut { address: address.to_owned(), id: manifest.id.clone(), step: manifest.step, adopted }
}
