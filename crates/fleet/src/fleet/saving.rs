//! Checkpoints of the job, and removing rows that are no longer worth keeping.

use std::sync::Weak;

use openfleet_core::strategy::CollectiveUpdate;
use openfleet_dist::storage::{Addresses, Opened};
use openfleet_dist::{LoadOptions, SaveOptions, Shrink};
use openfleet_engine::{Executor, Program, Var};
use openfleet_table::Shrunk;
use openfleet_table::checkpoint::Manifest;

use super::{Fleet, Others};
use crate::error::Result;

impl Fleet {
    /// Saves a consistent snapshot of all tables of the job, with optimizer state and training position, while training
    /// continues.
    ///
    /// The first worker saves for the job; on other workers the call does nothing and returns `None`. The servers write, so all
    /// of them must be able to write to the directory or bucket. An existing checkpoint is replaced only if the save succeeds.
    /// Without servers the parameters, tables and states of `program` are saved, in the same format.
    pub fn save_persistables(
        &self,
        executor: &mut Executor,
        program: &Program,
        address: &str,
    ) -> Result<Option<Manifest>> {
        self.save_persistables_with(executor, program, address, &SaveOptions::default())
    }

    /// [`Fleet::save_persistables`] with options: a delta save, some tables only, no replacing, extra data in the manifest.
    pub fn save_persistables_with(
        &self,
        executor: &mut Executor,
        program: &Program,
        address: &str,
        options: &SaveOptions,
    ) -> Result<Option<Manifest>> {
        self.working("save_persistables")?;
        if !self.is_first_worker() || self.skips_repeated(format_args!("saving `{address}`")) {
            return Ok(None);
        }
        let options = self.named(options.clone());
        let manifest = executor.save(program, address, &options)?;
        if options.only.is_empty() && !options.without_state {
            self.report_saved(program, address, &manifest);
        }
        Ok(Some(manifest))
    }

    /// The options of a save with the name of the job and the identity of its run, as checkpoints have them.
    pub(crate) fn named(&self, options: SaveOptions) -> SaveOptions {
        let run = self.run.lock().clone().unwrap_or_default();
        SaveOptions { job: self.settings.job.to_string(), run, ..options }
    }

    /// Tells the launcher of a collective job about a checkpoint that a restarted job can return to. (Servers report theirs
    /// themselves.)
    pub(crate) fn report_saved(&self, program: &Program, address: &str, manifest: &Manifest) {
        let Ok(Others::Ranks(group)) = self.working("save_persistables") else { return };
        let averages = matches!(self.collective_settings().update, CollectiveUpdate::Local { .. });
        match group.obstacle_to_return(program.fingerprint(), averages) {
            Some(obstacle) => {
                let name = self.name();
                self.notices.print(&format!("{name}: a restarted job cannot return to `{address}`: {obstacle}"));
            }
            None => self.report.update(|progress| {
                progress.checkpoint = Some(address.to_owned());
                progress.checkpoint_step = Some(manifest.step);
            }),
        }
    }

    /// Saves one table or parameter of the job, by name, like [`Fleet::save_persistables`].
    pub fn save_one_table(
        &self,
        executor: &mut Executor,
        program: &Program,
        name: &str,
        address: &str,
    ) -> Result<Option<Manifest>> {
        let options = SaveOptions { only: vec![name.to_owned()], ..SaveOptions::default() };
        self.save_persistables_with(executor, program, address, &options)
    }

    /// Saves what predicting `targets` from `feeds` needs: the ops that lead to them, their parameters and rows, without optimizer
    /// state. The first worker saves for the job; on other workers the call does nothing and returns `None`.
    pub fn save_inference_model(
        &self,
        executor: &mut Executor,
        program: &Program,
        feeds: &[String],
        targets: &[Var],
        address: &str,
    ) -> Result<Option<Manifest>> {
        self.working("save_inference_model")?;
        match self.is_first_worker() && !self.skips_repeated(format_args!("saving `{address}`")) {
            true => Ok(Some(executor.save_inference_model(program, feeds, targets, address)?)),
            false => Ok(None),
        }
    }

    /// Loads all tables from a checkpoint, before training or between two passes. The first worker loads for the job; on other
    /// workers the call does nothing.
    ///
    /// # Errors
    /// If the checkpoint misses a table or has one of another shape or optimizer; with `partial` such tables are skipped.
    pub fn load_model(&self, executor: &mut Executor, program: &Program, address: &str, partial: bool) -> Result<()> {
        // Every rank of a collective job has all tables.
        let loads = matches!(self.working("load_model")?, Others::Ranks(_)) || self.is_first_worker();
        match loads && self.begins_load(address)? {
            true => Ok(executor.load(program, address, LoadOptions { partial, ..LoadOptions::default() })?),
            false => Ok(()),
        }
    }

    /// Called before this process loads a checkpoint. Returns whether it has to: a restarted rank of a collective job that has
    /// not reached the end of its skipped batches has loaded it before.
    ///
    /// A restarted script that loads a checkpoint of its own run before it trains resumes by itself: it decides where it
    /// continues, so nothing is loaded or skipped for it.
    pub fn begins_load(&self, address: &str) -> Result<bool> {
        if self.skips_repeated(format_args!("loading `{address}`")) {
            return Ok(false);
        }
        let mut return_point = self.return_point.lock();
        if return_point.is_some() {
            let manifest = Opened::new(&Addresses, address, "loading")?.manifest;
            if self.run.lock().as_ref().is_some_and(|run| *run == manifest.run) {
                *return_point = None;
                let name = self.name();
                self.notices
                    .print(&format!("{name}: the script resumes from `{address}` by itself: no batches are skipped"));
            }
        }
        Ok(true)
    }

    /// Decays the scores of rows of sparse tables and removes rows by score and age. The first worker does it for the job and
    /// gets the number of removed rows; on other workers the call does nothing and returns `None`.
    pub fn shrink(&self, shrink: &Shrink) -> Result<Option<Shrunk>> {
        match self.working("shrink")? {
            Others::Ranks(_) if self.skips_repeated("shrinking") => Ok(None),
            // Every rank of a collective job has all rows.
            Others::Ranks(_) => self.shrink_locally(shrink).map(|shrunk| self.is_first_worker().then_some(shrunk)),
            _ if !self.is_first_worker() => Ok(None),
            Others::Servers(cluster) => Ok(Some(cluster.shrink(shrink)?)),
            Others::Nobody => self.shrink_locally(shrink).map(Some),
        }
    }

    fn shrink_locally(&self, shrink: &Shrink) -> Result<Shrunk> {
        let (mut total, mut names) = (Shrunk::default(), Vec::new());
        let mut found = shrink.table.is_none();
        for scope in self.scopes.lock().iter().filter_map(Weak::upgrade) {
            for name in scope.names() {
                let Some(table) = scope.sparse(&name) else { continue };
                if shrink.table.as_ref().is_none_or(|wanted| *wanted == name) {
                    total.merge(shrink.apply(&table));
                    found = true;
                }
                names.push(format!("`{name}`"));
            }
        }
        match &shrink.table {
            Some(table) if !found => {
                Err(openfleet_dist::Error::NoSuchTable { table: table.clone(), names: names.join(", ") }.into())
            }
            _ => Ok(total),
        }
    }
}
