//! `openfleet train --save`: when a run is saved, and where the next run resumes.
//!
//! In one process training pauses while its tables are written. With servers, the first worker requests the save from a
//! separate thread and the servers write while training continues. In geo mode workers hold updates that the servers do not
//! have yet; all workers send them at the end of an epoch, and the save happens then.

use std::thread::JoinHandle;

use openfleet_core::strategy::Mode;
use openfleet_dist::{Cluster, LoadOptions, Reduce, SaveOptions};
use openfleet_engine::{Executor, Pause, Program};
use openfleet_table::checkpoint::Manifest;
use parking_lot::Mutex;

use super::deployment::Deployment;
use super::output::{count, remark};
use crate::error::{Error, Result};
use crate::model::Salt;
use crate::model_dir::{self, ModelDescription};

/// When a run is saved, and whether it resumes from a checkpoint.
#[derive(Clone)]
pub(crate) struct Saving {
    address: String,
    /// Batches of one thread between two saves; 0 saves only at the end.
    pub(crate) every: u64,
    /// Whether there is a checkpoint to resume from.
    pub(crate) resumes: bool,
    geo: bool,
    description: ModelDescription,
}

impl Saving {
    /// With `resume`, a checkpoint at the address must be of the model that is trained.
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
            // Use the checkpoint's salt, so that ids find its rows.
            saving.description.salt = saved.salt;
        }
        Ok(saving)
    }

    fn check(&self, manifest: &Manifest, saved: &ModelDescription, mode: Option<Mode>) -> Result<()> {
        let refuse = |expected, got| Err(Error::BadOption { option: "--resume", expected, got });
        let ours = &self.description;
        if saved.model != ours.model || saved.seed != ours.seed {
            return refuse(
                "a checkpoint of the same model and seed",
                format!("{} of seed {}", saved.model, saved.seed),
            );
        }
        if saved.data != ours.data {
            return refuse("a checkpoint of data that is read the same way", "another description of the data".into());
        }
        let mode = mode.map_or_else(|| "local".to_owned(), |mode| mode.to_string());
        if manifest.mode != mode {
            return refuse("a checkpoint of the same mode", format!("one of mode {}", manifest.mode));
        }
        Ok(())
    }

    /// Whether every run must make the same batches in the same order, because a run may resume after one of them.
    pub(crate) fn has_fixed_batches(&self) -> bool {
        self.every > 0 || self.resumes
    }

    /// The salt of ids.
    pub(crate) fn salt(&self) -> Option<Salt> {
        self.description.salt
    }

    /// The address of the checkpoint.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Batches between two pauses of a worker's threads for saving; 0 for none.
    pub(crate) fn pause_every(&self, rank: usize) -> u64 {
        if rank == 0 && !self.geo { self.every } else { 0 }
    }

    /// Loads the checkpoint into the tables of this process.
    pub(crate) fn load(&self, executor: &mut Executor, program: &Program) -> Result<()> {
        Ok(executor.load(program, &self.address, LoadOptions::default())?)
    }

    /// The options of the save after training: after this many whole epochs of this run.
    pub(crate) fn last(&self, vocabulary: Vec<String>, epochs: u64, complete: bool) -> SaveOptions {
        self.options(&ModelDescription { complete, epochs, vocabulary, ..self.description.clone() })
    }

    /// Ends an epoch. In geo mode all workers have sent what they trained, and the first worker saves it before any of them
    /// starts the next epoch. Returns whether any worker was interrupted: then all of them stop.
    pub(crate) fn end_epoch(
        &self,
        cluster: &Cluster,
        rank: usize,
        epoch: u64,
        interrupted: bool,
        save: &mut dyn FnMut(&SaveOptions) -> Result<()>,
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
            match save(&self.options(&description)) {
                Err(Error::Engine(error)) if is_storage_failure(&error) => warn(&error.into()),
                saved => saved?,
            }
        }
        cluster.barrier()?;
        Ok(false)
    }

    fn options(&self, description: &ModelDescription) -> SaveOptions {
        description.save_options("openfleet train")
    }
}

/// Saves, and retries once if writing the checkpoint failed: no later save would make up for this one.
pub(crate) fn save_with_retry(mut save: impl FnMut() -> Result<()>) -> Result<()> {
    match save() {
        Err(Error::Engine(error)) if is_storage_failure(&error) => {
            warn(&error.into());
            save()
        }
        saved => saved,
    }
}

/// Saves periodically during training.
pub(crate) struct Saver<'a> {
    saving: &'a Saving,
    deployment: &'a Deployment,
    running: Mutex<Option<JoinHandle<openfleet_engine::Result<Manifest>>>>,
}

impl<'a> Saver<'a> {
    pub(crate) fn new(saving: &'a Saving, deployment: &'a Deployment) -> Self {
        Saver { saving, deployment, running: Mutex::default() }
    }

    /// Saves. With servers the save runs in the background; a save that would start before the previous one is complete is
    /// skipped.
    pub(crate) fn save(&self, pause: &Pause<'_>) -> openfleet_engine::Result<()> {
        let options = self.deployment.named(self.saving.options(&self.saving.description));
        let address = self.saving.address();
        let Some(save) = pause.save_later(address, &options) else {
            match pause.save(address, &options) {
                Ok(manifest) => {
                    report_saved(&manifest, address);
                    self.deployment.report_saved(pause.program(), address, &manifest);
                }
                Err(error) if is_storage_failure(&error) => warn(&error.into()),
                Err(error) => return Err(error),
            }
            return Ok(());
        };
        let mut running = self.running.lock();
        if running.as_ref().is_some_and(|running| !running.is_finished()) {
            remark("the previous save is still being written: this one is skipped");
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

/// Waits for a background save. A failed periodic save does not stop training: the previous checkpoint is intact.
fn finish(running: Option<JoinHandle<openfleet_engine::Result<Manifest>>>, address: &str) {
    match running.map(JoinHandle::join) {
        Some(Ok(Ok(manifest))) => report_saved(&manifest, address),
        Some(Ok(Err(error))) => warn(&error.into()),
        Some(Err(_)) => remark("warning: saving panicked; this is a bug in OpenFleet"),
        None => {}
    }
}

/// Whether writing the checkpoint failed, rather than the job.
fn is_storage_failure(error: &openfleet_engine::Error) -> bool {
    use openfleet_dist::Error::{Checkpoint, Server};
    let openfleet_engine::Error::Communicator(error) = error else { return false };
    matches!(error, Checkpoint { .. } | Server { request: "save", .. })
}

fn warn(error: &Error) {
    remark(&format!("warning: {}", openfleet_core::error::report(error)));
}

fn report_saved(manifest: &Manifest, address: &str) {
    remark(&format!("saved step {} to `{address}`", count(manifest.step)));
}
