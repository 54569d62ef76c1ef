//! Predicts with a saved model from many threads at once, without copying its tables.
//!
//! The ops and their order are those of the [`Executor`](crate::Executor), so predictions are equal to the bit. Only the source
//! of the values differs: rows are looked up in the model's files, which are mapped into memory, and dense parameters are loaded.
//! Opening verifies the checksum of every byte, which reads the whole model once; predicting verifies nothing more. A predictor
//! writes nothing and knows no cluster. If the model is replaced on disk, an open predictor keeps using the old one.

use std::sync::Arc;

use openfleet_core::WorkId;
use openfleet_dist::communicator::Mapped;
use openfleet_dist::storage::{Addresses, Opened};
use openfleet_table::checkpoint::{Manifest, MappedTable, read_dense, read_states};
use parking_lot::Mutex;

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::memory::{Arena, Scope};
use crate::run::pass::{self, TrainingThread};
use crate::run::{Plan, RunOptions, RunReport, states};
use crate::saved::checkpoint;
use crate::saved::inference::{self, InferenceModel};
use crate::value::{Feed, Tensor};

/// An open model.
pub struct Predictor {
    model: InferenceModel,
    plan: Plan,
    /// Arenas that no thread uses at the moment. There are as many as there were concurrent predictions at the peak.
    arenas: Mutex<Vec<Arena>>,
}

impl Predictor {
    /// Opens a model that `save_inference_model` wrote.
    pub fn open(address: &str) -> Result<Self> {
        Self::read(address, |manifest| inference::model_in_manifest(manifest, address))
    }

    /// Opens a checkpoint of any origin to predict with a program whose parameters and tables it contains.
    pub fn of(model: InferenceModel, address: &str) -> Result<Self> {
        Self::read(address, |_| Ok(model))
    }

    fn read(address: &str, find: impl FnOnce(&Manifest) -> Result<InferenceModel>) -> Result<Self> {
        let failed = |source| Error::checkpoint("opening", address, source);
        let Opened { storage, manifest, .. } = Opened::new(&Addresses, address, "opening")?;
        let storage = storage.as_ref();
        let model = find(&manifest)?;
        checkpoint::check(&model.program, &manifest).map_err(failed)?;
        let scope = Scope::new();
        states::take(&model.program, &scope, read_states(storage, &manifest).map_err(failed)?)?;
        let plan = Plan::compile_with(&model.program, &scope, &|sparse, dense| {
            let mut values = read_dense(storage, &manifest).map_err(failed)?;
            let missing = |name: &str| Error::NotInitialized { name: name.to_owned() };
            let table = |(name, spec): (String, _)| {
                let saved = manifest.sparse.iter().find(|saved| saved.name == name).ok_or_else(|| missing(&name))?;
                let table = MappedTable::open(storage, &manifest, saved, spec).map_err(failed)?;
                Ok((name, table))
            };
            let parameter = |(name, _): (String, _)| {
                let parameter = values.remove(&name).ok_or_else(|| missing(&name))?;
                Ok((name, parameter.values))
            };
            let sparse = sparse.into_iter().map(table).collect::<Result<Vec<_>>>()?;
            let dense = dense.into_iter().map(parameter).collect::<Result<Vec<_>>>()?;
            Ok(Arc::new(Mapped::new(sparse, dense)))
        })?;
        model.targets.iter().try_for_each(|&target| plan.check_fetch(target))?;
        Ok(Predictor { model, plan, arenas: Mutex::default() })
    }

    /// The names of the feeds.
    pub fn feeds(&self) -> &[String] {
        &self.model.feeds
    }

    /// The names of the targets, in order.
    pub fn targets(&self) -> Vec<&str> {
        self.model.targets.iter().map(|&target| self.plan.name(target)).collect()
    }

    /// The program it runs.
    pub fn model(&self) -> &InferenceModel {
        &self.model
    }

    /// Computes the targets for one batch. Ids that the model has never seen get the first values that training would have given
    /// them. Fails, naming the field, if the feed does not match.
    pub fn predict(&self, feed: Feed) -> Result<Vec<Tensor>> {
        let (schema, batch, dims) = feed.into_shaped_parts()?;
        let mut arena = self.arenas.lock().pop().unwrap_or_else(|| self.plan.arena());
        let result = self.plan.bind_fed(&mut arena, &schema, dims).and_then(|()| {
            // Always step 0, so that an op that draws random numbers returns the same result for the same batch.
            self.plan.step(&mut arena, &batch, WorkId::step(0, 0))?;
            self.model.targets.iter().map(|&target| self.plan.fetch(&arena, &batch, target)).collect()
        });
        self.arenas.lock().push(arena);
        result
    }

    /// Runs one pass over a dataset, like [`Executor::infer_from_dataset`](crate::Executor::infer_from_dataset). The data may
    /// have fields that the model does not read.
    pub fn infer_from_dataset(&self, dataset: &dyn Dataset, options: &RunOptions<'_>) -> Result<RunReport> {
        let count = if options.threads == 0 { dataset.thread_num() } else { options.threads }.max(1);
        options.fetch.iter().try_for_each(|&var| self.plan.check_fetch(var))?;
        let mut threads: Vec<TrainingThread> = (0..count).map(|_| TrainingThread::new(&self.plan)).collect();
        for thread in &mut threads {
            thread.prepare(&self.plan, dataset.schema(), options)?;
        }
        // Nothing changes that could be saved in a pause.
        pass::run(&self.plan, &mut threads, dataset, options, pass::Job::default(), &|_| Ok(()))
    }
}

impl std::fmt::Debug for Predictor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Predictor")
            .field("feeds", &self.feeds())
            .field("targets", &self.targets())
            .finish_non_exhaustive()
    }
}
