//! The checked form of the command line: model, data, files, threads, servers, saving.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use openfleet_core::strategy::Mode;
use openfleet_dist::Reduce;
use openfleet_engine::dataset::{InMemoryDataset, QueueDataset, WordsConfig, WordsDataset};
use openfleet_engine::{Executor, Minimize};

use super::args::TrainArgs;
use super::data::TrainingData;
use super::vectors::check_file;
use crate::cli::cluster_choice::ClusterChoice;
use crate::cli::deployment::Deployment;
use crate::cli::model_choice::ModelKind;
use crate::cli::output::{bytes, count, plural};
use crate::cli::saving::Saving;
use crate::columns::DataDescription;
use crate::error::{Error, Result};
use crate::evaluation::{Evaluation, Pass, evaluate};
use crate::files::expand;
use crate::fleet::Fleet;
use crate::model::{ModelShape, Network, Salt};
use crate::model_dir::{self, ModelDescription};

/// The options, checked and resolved.
#[derive(Clone)]
pub(super) struct Job<'a> {
    pub(super) arguments: &'a TrainArgs,
    pub(super) shape: ModelShape,
    pub(super) data: DataDescription,
    pub(super) salt: Option<Salt>,
    pub(super) train_files: Vec<PathBuf>,
    pub(super) test_files: Vec<PathBuf>,
    /// Training threads of this process, or of one worker in [`super::worker::WorkerRun`].
    pub(super) threads: usize,
    pub(super) batch: usize,
    pub(super) cluster: Option<ClusterChoice>,
    pub(super) saving: Option<Saving>,
}

impl<'a> Job<'a> {
    /// Checks the options. `fleet` is the process of a job that a launcher started.
    pub(super) fn resolve(arguments: &'a TrainArgs, fleet: Option<&Fleet>) -> Result<Self> {
        let kind = arguments.model.model;
        let shape = arguments.model.resolve()?;
        // Report a bad learning rate before looking for files.
        arguments.optimizer.resolve(kind, Some(1))?;
        check_options_of(kind, arguments)?;
        let data = arguments.data.resolve(kind)?;
        let train_files = expand(&arguments.train)?;
        let test_files = if arguments.test.is_empty() { Vec::new() } else { expand(&arguments.test)? };
        let batch = arguments.reading.batch_size.unwrap_or(match kind {
            ModelKind::Word2vec => 256,
            ModelKind::FitALine => 20,
            _ => 512,
        });
        let cluster = arguments.cluster.resolve(fleet)?;
        if let Some(path) = &arguments.vectors {
            check_file(path)?;
        }
        let is_click = !matches!(kind, ModelKind::Word2vec | ModelKind::FitALine | ModelKind::Counter);
        let salt = if is_click && !arguments.model.sizes.share_ids { data.salt() } else { None };
        let is_collective = cluster.as_ref().is_some_and(|choice| choice.strategy.mode() == Mode::Collective);
        let threads = match fleet {
            // A rank trains with one thread; the ranks of this process share its threads.
            _ if is_collective => {
                cluster.as_ref().filter(|_| fleet.is_none()).map_or(1, |choice| choice.workers as usize)
            }
            Some(fleet) => arguments.reading.asked_threads().unwrap_or(fleet.thread_num()),
            None => arguments.reading.threads(),
        };
        let saving = arguments.save.as_deref().map(|address| {
            let description = ModelDescription {
                model: shape.clone(),
                seed: arguments.seed,
                data: data.clone(),
                salt,
                storage: arguments.model.sizes.storage(),
                complete: false,
                epochs: 0,
                vocabulary: Vec::new(),
            };
            let mode = cluster.as_ref().map(|choice| choice.strategy.mode());
            Saving::resolve(address, arguments.save_every.unwrap_or(0), arguments.resume, mode, description)
        });
        let saving = saving.transpose()?;
        let salt = saving.as_ref().map_or(salt, Saving::salt);
        if arguments.model.sizes.share_ids && salt.is_some() {
            let (expected, got) = ("a checkpoint whose slots share ids", "one whose ids are salted by slot".to_owned());
            return Err(Error::BadOption { option: "--resume", expected, got });
        }
        if let (Some(saving), None) = (&saving, fleet) {
            model_dir::probe(saving.address())?;
        }
        Ok(Job { arguments, shape, data, salt, train_files, test_files, threads, batch, cluster, saving })
    }

    /// Training threads of each worker; the workers of one process share its threads.
    pub(super) fn threads_per_worker(&self) -> usize {
        let workers = self.cluster.as_ref().map_or(1, |choice| choice.workers as usize);
        (self.threads / workers).max(1)
    }

    /// Table updates that this many batches of all workers make. The result is the same on every worker.
    pub(super) fn update_count(&self, batches: u64, workers: usize) -> u64 {
        let (workers, threads) = (workers as u64, self.threads_per_worker() as u64);
        let batches_per_update = match self.cluster.as_ref().map(|choice| choice.strategy.mode()) {
            // The gradients of all threads of all workers make one update.
            Some(Mode::Sync | Mode::Collective) => workers * threads,
            // The gradients of one worker's threads make one update.
            Some(Mode::HalfAsync) => threads,
            // Every worker trains its own copy of the tables.
            Some(Mode::Geo) => workers,
            _ => 1,
        };
        batches.div_ceil(batches_per_update)
    }

    /// Rows per batch of one thread.
    ///
    /// The threads share the batch of a click model. Each thread trains its part alone and sees the others' updates one part
    /// later, so whole batches per thread would cost as much quality as a batch that many times larger; parts cost half of
    /// that (docs/benchmarks.md). A part has at least 128 rows: matrix products are slower below that.
    fn rows_per_thread(&self) -> usize {
        match self.arguments.model.model {
            ModelKind::Word2vec | ModelKind::FitALine | ModelKind::Counter => self.batch,
            _ => (self.batch / self.threads).max(128).min(self.batch),
        }
    }

    /// Opens the training data of worker `part.0` of `part.1`. Text is always loaded into memory.
    pub(super) fn open_data(&self, part: (usize, usize)) -> Result<TrainingData> {
        let Some(config) = self.arguments.reading.config(&self.data, &self.train_files, self.rows_per_thread()) else {
            let ModelShape::Word2vec { window, negatives, .. } = self.shape else {
                unreachable!("only word2vec reads text")
            };
            let default = WordsConfig::default();
            return Ok(TrainingData::Words(WordsDataset::load(WordsConfig {
                files: self.train_files.clone(),
                min_count: self.arguments.min_count.unwrap_or(default.min_count),
                window,
                negatives,
                subsample: self.arguments.subsample.unwrap_or(default.subsample),
                batch_size: self.batch,
                thread_num: self.threads,
                seed: self.arguments.seed,
                part,
            })?));
        };
        let config = config.drop_last(self.arguments.drop_last);
        // One reader: batches come in the order of the files, so a resumed run can skip the same ones.
        let config = if self.has_fixed_batches() { config.thread_num(1) } else { config };
        if !self.arguments.in_memory {
            return Ok(TrainingData::Queue(QueueDataset::new(config)?));
        }
        let mut dataset = InMemoryDataset::new(config)?;
        dataset.load_into_memory()?;
        Ok(TrainingData::Memory(dataset))
    }

    /// Whether every run must make the same batches in the same order, because a run may resume after one of them.
    pub(super) fn has_fixed_batches(&self) -> bool {
        self.saving.as_ref().is_some_and(Saving::has_fixed_batches)
    }

    /// Evaluates the network on the test files. In a job, every worker evaluates its part of the files and all workers
    /// return the figures of the whole.
    pub(super) fn test(
        &self,
        executor: &mut Executor,
        network: &Network,
        deployment: &Deployment,
        stop: &AtomicBool,
    ) -> Result<Evaluation> {
        let Deployment::Job(fleet) = deployment else {
            return self.test_on(&self.test_files, executor, network, stop);
        };
        let own = fleet.split_files(&self.test_files)?;
        let part = if own.is_empty() { Evaluation::default() } else { self.test_on(own, executor, network, stop)? };
        part.of_all_workers(network, |values| deployment.all_reduce(Reduce::Sum, values))
    }

    fn test_on(
        &self,
        files: &[PathBuf],
        executor: &mut Executor,
        network: &Network,
        stop: &AtomicBool,
    ) -> Result<Evaluation> {
        let Some(config) = self.arguments.reading.config(&self.data, files, self.batch) else {
            return Ok(Evaluation::default());
        };
        let dataset = QueueDataset::new(config)?;
        let pass = Pass { threads: self.threads, labelled: true, stop, predictions: None };
        evaluate(executor, network, &dataset, pass)
    }

    /// One line that says what will be trained, how, and on what.
    pub(super) fn description(&self, network: &Network, minimize: &Minimize, data: &TrainingData) -> String {
        let size: u64 = self.train_files.iter().filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum();
        let source = match data {
            TrainingData::Queue(_) => "streaming".to_owned(),
            TrainingData::Memory(dataset) => format!("{} rows in memory", count(dataset.memory_rows() as u64)),
            TrainingData::Words(dataset) => {
                format!("{} words, {} distinct", count(dataset.raw_words()), count(dataset.words().len() as u64))
            }
        };
        let test = if self.test_files.is_empty() {
            String::new()
        } else {
            format!("; test: {}", plural(self.test_files.len(), "file"))
        };
        format!(
            "{} ({}; {} dense weights), {} at {}, batch {}, {}, {}; train: {} of {} ({}), {source}{test}",
            self.shape.name(),
            self.shape,
            count(network.parameter_count() as u64),
            minimize.optimizer.name(),
            minimize.schedule.rate(0).max(minimize.schedule.rate(self.arguments.optimizer.warmup_steps())),
            self.batch,
            plural(self.threads, "thread"),
            plural(self.arguments.epochs as usize, "epoch"),
            plural(self.train_files.len(), "file"),
            self.data.format.name(),
            bytes(size),
        )
    }
}

/// Refuses options that this kind of model does not have, instead of ignoring them.
fn check_options_of(kind: ModelKind, arguments: &TrainArgs) -> Result<()> {
    let words_only = [
        (arguments.subsample.is_some(), "--subsample"),
        (arguments.min_count.is_some(), "--min-count"),
        (arguments.vectors.is_some(), "--vectors"),
    ];
    let rows_only = [
        (!arguments.test.is_empty(), "--test"),
        (arguments.drop_last, "--drop-last"),
        (arguments.reading.skip_bad_lines, "--skip-bad-lines"),
        (arguments.reading.pipe_command.is_some(), "--pipe-command"),
        (arguments.save_every.is_some(), "--save-every"),
        (arguments.resume, "--resume"),
    ];
    let no_prediction = [(!arguments.test.is_empty(), "--test")];
    let first = |options: &[(bool, &'static str)]| options.iter().find(|(given, _)| *given).map(|(_, option)| *option);
    let refused = match kind {
        ModelKind::Word2vec => first(&rows_only).zip(Some("models that read rows")),
        ModelKind::Counter if first(&no_prediction).is_some() => first(&no_prediction).zip(Some("models that predict")),
        _ => first(&words_only).zip(Some("word2vec")),
    };
    match refused {
        Some((option, takers)) => Err(Error::MeaninglessOption { option, owner: kind.name().to_owned(), takers }),
        None => Ok(()),
    }
}
