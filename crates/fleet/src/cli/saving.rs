//! `openfleet train --save`: when a run is saved, and where the next one goes on.
//!
//! In one process training pauses while its tables are written. On servers they are written while training goes on: the
//! first worker asks, from a thread of its own. In geo mode, where every worker has learnt things that the servers do not know
//! yet, all of them hand those in at the end of an epoch, and that is when it is saved.

use std::thread::JoinHandle;

use openfleet_core::strategy::Mode;
use openfleet_dist::{Cluster, LoadOptions, Reduce, SaveOptions};
use openfleet_engine::{Executor, Pause, Program};
use openfleet_table::checkpoint::Manifest;
use parking_lot::Mutex;

use super::output::{count, remark};
use crate::error::{Error, Result};
use crate::model::Salt;
use crate::model_dir::{self, ModelDescription};

/// When a run is saved, and whether it goes on from what was.
#[derive(Clone)]
pub(crate) struct Saving {
    address: String,
    /// Batches of a thread between two saves; 0: only at the end.
    pub(crate) every: u64,
    /// Whether there is a checkpoint to go on from.
    pub(crate) resumes: bool,
    geo: bool,
    description: ModelDescription,
}

impl Saving {
    /// With `resume` the model at the address, if there is one, has to be the one that is trained.
    pub(crate) fn resolve(
        address: &str,
        every: u64,
        resume: bool,
        mode: Option<Mode>,
        description: ModelDescription,
    ) -> Result<Self> {
        model_dir::check_place(address)?;
        let mut saving = Saving {
            address: address.to_owned(),
            every,
            resumes: resume && model_dir::holds_checkpoint(address)?,
            geo: mode == Some(Mode::Geo),
            description,
        };
        if saving.resumes {
            let (manifest, saved) = model_dir::describe(address)?;
            saving.check(&manifest, &saved, mode)?;
            // Ids find the rows that are there.
            saving.description.salt = saved.salt;
        }
        Ok(saving)
    }

    fn check(&self, manifest: &Manifest, saved: &ModelDescription, mode: Option<Mode>) -> Result<()> {
        let other = |expected, got| Err(Error::BadOption { option: "--resume", expected, got });
        let ours = &self.description;
        if saved.model != ours.model || saved.seed != ours.seed {
            return other("a checkpoint of the same model and seed", format!("{} of seed {}", saved.model, saved.seed));
        }
        if saved.data != ours.data {
            return other("a checkpoint of data that is read the same way", "another description of the data".into());
        }
        let mode = mode.map_or_else(|| "local".to_owned(), |mode| mode.to_string());
        if manifest.mode != mode {
            return other("a checkpoint of the same mode", format!("one of mode {}", manifest.mode));
        }
        Ok(())
    }

    /// Whether batches have to be the same ones in every run.
    pub(crate) fn deals(&self) -> bool {
        self.every > 0 || self.resumes
    }

    /// What ids are salted with.
    pub(crate) fn salt(&self) -> Option<Salt> {
        self.description.salt
    }

    /// Where the checkpoint is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Batches between two pauses of a worker's threads; 0 for none.
    pub(crate) fn pause_every(&self, rank: usize) -> u64 {
        if rank == 0 && !self.geo { self.every } else { 0 }
    }

    /// Takes up what was saved, where the tables are in this process.
    pub(crate) fn load(&self, executor: &mut Executor, program: &Program) -> Result<()> {
        Ok(executor.load(program, &self.address, LoadOptions::default())?)
    }

    /// The last save, which nothing follows: after so many whole epochs of this run.
    pub(crate) fn save(
        &self,
        executor: &mut Executor,
        program: &Program,
        vocabulary: Vec<String>,
        epochs: u64,
        complete: bool,
    ) -> Result<()> {
        let description = ModelDescription { complete, epochs, vocabulary, ..self.description.clone() };
        let options = self.options(&description);
        if let Err(error) = executor.save(program, &self.address, &options) {
            if !is_of_storage(&error) {
                return Err(error.into());
            }
            // Nothing follows it: what a moment later may work is worth a second attempt.
            warn(&error);
            executor.save(program, &self.address, &options)?;
        }
        Ok(())
    }

    /// An epoch has ended. In geo mode all workers have handed in what they learnt; the first saves it before any goes on.
    /// Says whether any of them was interrupted: then all of them end.
    pub(crate) fn epoch_ended(
        &self,
        executor: &mut Executor,
        program: &Program,
        cluster: &Cluster,
        rank: usize,
        epoch: u64,
        interrupted: bool,
    ) -> Result<bool> {
        if !self.geo || self.every == 0 {
            return Ok(interrupted);
        }
        let mut stops = [f64::from(u8::from(interrupted))];
        cluster.all_reduce(Reduce::Max, &mut stops)?;
        if stops[0] > 0.0 {
            return Ok(true);
        }
        if rank == 0 {
            let description = ModelDescription { epochs: epoch, ..self.description.clone() };
            match executor.save(program, &self.address, &self.options(&description)) {
                Err(error) if is_of_storage(&error) => warn(&error),
                saved => drop(saved?),
            }
        }
        cluster.barrier()?;
        Ok(false)
    }

    fn options(&self, description: &ModelDescription) -> SaveOptions {
        description.save_options("openfleet train")
    }
}

/// Saves now and then while training goes on.
pub(crate) struct Saver<'a> {
    saving: &'a Saving,
    running: Mutex<Option<JoinHandle<openfleet_engine::Result<Manifest>>>>,
}

impl<'a> Saver<'a> {
    pub(crate) fn new(saving: &'a Saving) -> Self {
        Saver { saving, running: Mutex::default() }
    }

    /// Saves what has been learnt. On servers that goes on behind the scenes; while it does, the next one is left out.
    pub(crate) fn save(&self, pause: &Pause<'_>) -> openfleet_engine::Result<()> {
        let (address, options) = (self.saving.address(), self.saving.options(&self.saving.description));
        let Some(save) = pause.save_later(address, &options) else {
            match pause.save(address, &options) {
                Ok(manifest) => tell(&manifest, address),
                Err(error) if is_of_storage(&error) => warn(&error),
                Err(error) => return Err(error),
            }
            return Ok(());
        };
        let mut running = self.running.lock();
        if running.as_ref().is_some_and(|running| !running.is_finished()) {
            remark("the last save is still being written: this one is left out");
            return Ok(());
        }
        finish(running.take(), address);
        *running = Some(std::thread::spawn(save));
        Ok(())
    }
}

impl Drop for Saver<'_> {
    fn drop(&mut self) {
        finish(self.running.get_mut().take(), self.saving.address());
    }
}

/// What goes wrong with one of many saves is no reason to end training: the checkpoint before it is whole.
fn finish(running: Option<JoinHandle<openfleet_engine::Result<Manifest>>>, address: &str) {
    match running.map(JoinHandle::join) {
        Some(Ok(Ok(manifest))) => tell(&manifest, address),
        Some(Ok(Err(error))) => warn(&error),
        Some(Err(_)) => remark("warning: saving panicked, which is a bug of OpenFleet's"),
        None => {}
    }
}

/// Whether writing a checkpoint failed, and not the job.
fn is_of_storage(error: &openfleet_engine::Error) -> bool {
    use openfleet_dist::Error::{Checkpoint, Server};
    let openfleet_engine::Error::Communicator(error) = error else { return false };
    matches!(error, Checkpoint { .. } | Server { request: "save", .. })
}

fn warn(error: &openfleet_engine::Error) {
    remark(&format!("warning: {}", openfleet_core::error::report(error)));
}

fn tell(manifest: &Manifest, address: &str) {
    remark(&format!("saved step {} to `{address}`", count(manifest.step)));
}
