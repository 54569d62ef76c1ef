//! `openfleet train`: from files to a judged model.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use openfleet_core::strategy::Mode;
use openfleet_dist::request::status::Status;
use openfleet_dist::{Cluster, Reduce};
use openfleet_engine::dataset::{
    self, Dataset, InMemoryDataset, QueueDataset, RoundRobinDataset, WordsConfig, WordsDataset, split_files,
};
use openfleet_engine::models::INPUT_TABLE;
use openfleet_engine::op::EmbeddingOptions;
use openfleet_engine::{
    BatchView, Executor, Feed, Minimize, Net, Observation, ParamAttr, Pause, RunOptions, RunReport, Scope, Tensor,
};
use serde::Serialize;

use super::Outcome;
use super::cluster_choice::{ClusterChoice, ClusterOptions};
use super::data_choice::{DataOptions, ReadOptions};
use super::model_choice::{ModelKind, ModelOptions};
use super::optimizer_choice::OptimizerOptions;
use super::output::{bytes, count, duration, plural, rate, remark, result};
use super::place::{self, Place};
use super::progress::{Meter, Watched, waiting_share};
use super::saving::{Saver, Saving};
use crate::columns::DataDescription;
use crate::error::{Error, Result};
use crate::evaluation::{Evaluation, Pass, evaluate};
use crate::files::expand;
use crate::fleet::Fleet;
use crate::model::{ModelShape, Network, Salt, table_names};
use crate::model_dir::{self, ModelDescription};

/// `openfleet train ...`.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// Files to train on: names or quoted patterns, several with blanks or commas between them.
    #[arg(long, required = true, num_args = 1.., value_name = "GLOB", help_heading = "Data")]
    train: Vec<String>,
    /// Files to judge the model by afterwards.
    #[arg(long, num_args = 1.., value_name = "GLOB", help_heading = "Data")]
    test: Vec<String>,
    #[command(flatten)]
    data: DataOptions,
    #[command(flatten)]
    pub(crate) reading: ReadOptions,
    /// Leave out the rows at the end of an epoch that do not fill a batch.
    #[arg(long, help_heading = "Reading")]
    drop_last: bool,
    /// Load the training rows and shuffle them before each epoch, rather than stream the files.
    #[arg(long, help_heading = "Reading")]
    in_memory: bool,
    /// The share of the text above which word2vec drops a word now and then; 0 drops none [0.0001].
    #[arg(long, value_name = "SHARE", help_heading = "Reading")]
    subsample: Option<f64>,
    /// word2vec leaves out rarer words [5].
    #[arg(long, value_name = "N", help_heading = "Reading")]
    min_count: Option<u64>,
    #[command(flatten)]
    optimizer: OptimizerOptions,
    #[command(flatten)]
    cluster: ClusterOptions,
    /// Times to go over the training files.
    #[arg(long, alias = "epoch", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// First values, shuffles and samples follow from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the trained model to this directory or address, such as `s3://bucket/model`: a checkpoint, which on several
    /// machines all servers have to see.
    #[arg(long, value_name = "ADDRESS", help_heading = "Saving")]
    save: Option<String>,
    /// Save also each time a thread of the first worker has done so many batches. (In geo mode: at the end of each epoch.)
    #[arg(long, value_name = "BATCHES", requires = "save", help_heading = "Saving", value_parser = clap::value_parser!(u64).range(1..))]
    save_every: Option<u64>,
    /// Go on from the checkpoint that `--save` names, if there is one, after the batches that it has learnt from.
    #[arg(long, requires = "save", help_heading = "Saving")]
    resume: bool,
    /// Write word2vec's vectors to this file, in its text format.
    #[arg(long, value_name = "FILE")]
    vectors: Option<PathBuf>,
    /// End with one JSON object on a line.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long, short)]
    quiet: bool,
    /// A line of progress after so many batches of the first thread, rather than by the clock.
    #[arg(long, value_name = "BATCHES", value_parser = clap::value_parser!(u64).range(1..))]
    print_period: Option<u64>,
    /// Measure each op and show the times.
    #[arg(long)]
    debug: bool,
}

/// The last line of `train --json`.
#[derive(Debug, Clone, Default, Serialize)]
struct Summary {
    model: &'static str,
    optimizer: &'static str,
    /// Epochs begun.
    epochs: u64,
    threads: usize,
    batch: usize,
    /// Rows trained on, in all epochs.
    samples: u64,
    /// Rows that were skipped, because a checkpoint or, after a restart, the servers had learnt from them.
    skipped_samples: u64,
    /// Training time, without loading, test and saving.
    seconds: f64,
    samples_per_second: f64,
    /// The share of the threads' time that was spent waiting for data and for servers.
    waiting_share: f64,
    /// Mean loss a row of the last epoch.
    train_loss: Option<f64>,
    /// Of the last epoch, while it was learnt.
    train_auc: Option<f64>,
    test_rows: Option<u64>,
    test_auc: Option<f64>,
    test_logloss: Option<f64>,
    test_accuracy: Option<f64>,
    test_mse: Option<f64>,
    test_mae: Option<f64>,
    test_seconds: Option<f64>,
    load_seconds: Option<f64>,
    parameters: usize,
    rows_in_tables: usize,
    /// Bad lines left out of one pass over the training files.
    skipped_lines: u64,
    test_skipped_lines: u64,
    /// Gradients that were not finite and therefore not applied.
    refused_gradients: u64,
    /// word2vec only: words of the text gone over, and different ones kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    words_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vocabulary: Option<usize>,
    peak_rss_bytes: Option<u64>,
    /// In a job: of each worker, by rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_samples_per_second: Option<Vec<f64>>,
    /// With servers: payload bytes of all workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_sent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_received: Option<u64>,
    interrupted: bool,
}

/// The options, checked and looked up.
#[derive(Clone)]
struct Job<'a> {
    arguments: &'a TrainArgs,
    shape: ModelShape,
    data: DataDescription,
    salt: Option<Salt>,
    train_files: Vec<PathBuf>,
    test_files: Vec<PathBuf>,
    threads: usize,
    batch: usize,
    cluster: Option<ClusterChoice>,
    saving: Option<Saving>,
}

pub(crate) fn run(arguments: &TrainArgs, stop: &AtomicBool) -> Result<Outcome> {
    let fleet = place::launched()?;
    if let Some(server) = fleet.as_ref().filter(|fleet| fleet.is_server()) {
        let address = arguments.save.as_deref().filter(|_| arguments.resume);
        if let Some(address) = &arguments.save {
            model_dir::probe(address)?;
        }
        let resumes = address.map(model_dir::holds_checkpoint).transpose()? == Some(true);
        return place::serve(server, stop, address.filter(|_| resumes));
    }
    let job = Job::resolve(arguments, fleet.as_ref())?;
    let rule = arguments.optimizer.resolve(arguments.model.model, Some(1))?;
    let resume = job.saving.as_ref().filter(|saving| saving.resumes).map(Saving::address);
    if let (true, Some(address)) = (arguments.resume && resume.is_none(), &arguments.save) {
        remark(&format!("there is no checkpoint in `{address}` to go on from: training begins at the start"));
    }
    let place = Place::prepare(fleet, job.cluster.clone(), job.threads_of_a_worker(), &rule, stop, resume)?;
    let loading = Instant::now();
    let mut workers = job.workers(&place)?;
    let load_seconds = workers[0].data.is_loaded().then(|| loading.elapsed().as_secs_f64());
    if !arguments.quiet {
        remark(&job.description(&workers[0].network, &workers[0].minimize, &workers[0].data));
        place.describe().iter().for_each(|line| remark(line));
    }
    let tell = |samples, speed| place.tell_launcher(samples, speed);
    let mut trained = train_together(&mut workers, &place, stop, &tell)?;
    if trained.interrupted && place.ends_at_once() {
        remark("asked to stop: this worker ends, and continues here when it is started again");
        return Ok(Outcome::Interrupted);
    }
    // Nobody judges before everybody has trained.
    let worker_samples_per_second = trained.of_all_workers(&place)?;
    if trained.samples + trained.skipped_samples == 0 && !trained.interrupted {
        let data = plural(job.train_files.len(), "training file");
        let none = dataset::Error::NoRows { data, skipped_lines: trained.skipped_lines };
        return Err(openfleet_engine::Error::from(none).into());
    }
    let first = &mut workers[0];
    let mut interrupted = trained.interrupted;
    if interrupted {
        remark("interrupted: training ends after the last whole batch");
    }
    let evaluation = match interrupted || job.test_files.is_empty() {
        true => None,
        false => Some(job.test(&mut first.executor, &first.network, &place, stop)?),
    };
    if evaluation.as_ref().is_some_and(|evaluation| evaluation.stopped) {
        remark("interrupted: the test pass covers only the first rows");
        interrupted = true;
    }
    if let (Some(path), true) = (&arguments.vectors, place.speaks()) {
        write_vectors(path, &job.shape, &mut first.executor, first.data.words().unwrap_or_default())?;
        remark(&format!("word vectors are in `{}`", path.display()));
    }
    if let (Some(saving), true) = (&job.saving, place.speaks()) {
        let words = first.data.words().unwrap_or_default().to_vec();
        let whole = trained.epochs.saturating_sub(u64::from(trained.interrupted));
        saving.save(&mut first.executor, &first.network.net.main, words, whole, !trained.interrupted)?;
        remark(&format!("the model is in `{}`", saving.address()));
    }

    let summary = job.summary(
        &first.network,
        &first.minimize,
        first.executor.scope(),
        &first.data,
        &trained,
        evaluation.as_ref(),
    );
    let clusters: Vec<Arc<Cluster>> = workers.iter().filter_map(|worker| worker.cluster.clone()).collect();
    let summary = match clusters.first() {
        Some(first) => {
            let rows = |status: &Status| status.sparse.iter().map(|(_, rows, _)| *rows as usize).sum::<usize>();
            let rows_in_tables = first.status()?.iter().map(rows).sum();
            let traffic = clusters.iter().map(|cluster| cluster.traffic());
            let (sent, received) = traffic.fold((0, 0), |sum, (sent, received)| (sum.0 + sent, sum.1 + received));
            let mut moved = [sent as f64, received as f64];
            place.all_reduce(Reduce::Sum, &mut moved)?;
            let [bytes_sent, bytes_received] = moved.map(|bytes| Some(bytes as u64));
            place.leave(&clusters)?;
            Summary { rows_in_tables, bytes_sent, bytes_received, ..summary }
        }
        None => summary,
    };
    let summary = Summary { load_seconds, interrupted, worker_samples_per_second, ..summary };
    if place.speaks() {
        summary.tell(evaluation.as_ref());
        if arguments.json {
            // Plain numbers, strings and options: there is nothing that JSON cannot say.
            result(&serde_json::to_string(&summary).unwrap_or_default());
        }
    }
    Ok(if interrupted { Outcome::Interrupted } else { Outcome::Done })
}

/// One worker: its network, its part of the data, and what runs it.
struct WorkerRun<'a> {
    job: Job<'a>,
    network: Network,
    minimize: Minimize,
    data: TrainingData,
    executor: Executor,
    cluster: Option<Arc<Cluster>>,
    rank: usize,
}

/// Trains all workers at once, each on a thread of its own; the first one's figures stand for their quality, the samples
/// are those of all.
fn train_together(
    workers: &mut [WorkerRun<'_>],
    place: &Place,
    stop: &AtomicBool,
    tell: &(dyn Fn(u64, f64) + Sync),
) -> Result<TrainingReport> {
    let outcomes: Vec<Result<TrainingReport>> = std::thread::scope(|scope| {
        let handles: Vec<_> = workers
            .iter_mut()
            .enumerate()
            .map(|(rank, worker)| {
                let train = move || {
                    let tell = (rank == 0).then_some(tell);
                    let report = worker.train(stop, tell);
                    if report.is_err() && matches!(place, Place::Inside(..)) {
                        // The others of this process end rather than wait for this one. In a job of processes one that
                        // fails has not departed: it may be started again.
                        stop.store(true, Ordering::Relaxed);
                        worker.cluster.iter().for_each(|cluster| drop(cluster.close()));
                    }
                    report
                };
                scope.spawn(train)
            })
            .collect();
        let joined = handles.into_iter().enumerate();
        joined.map(|(rank, handle)| handle.join().unwrap_or(Err(Error::WorkerPanicked { rank }))).collect()
    });
    let mut outcomes = outcomes.into_iter();
    let mut total = outcomes.next().unwrap_or_else(|| Ok(TrainingReport::default()))?;
    for report in outcomes {
        total.join(report?);
    }
    Ok(total)
}

/// What all epochs together did.
#[derive(Default)]
struct TrainingReport {
    epochs: u64,
    samples: u64,
    /// Rows that were skipped, because they were trained before this process started.
    skipped_samples: u64,
    elapsed: Duration,
    waited: Duration,
    words: u64,
    refused_gradients: u64,
    skipped_lines: u64,
    loss: Option<f64>,
    auc: Option<f64>,
    interrupted: bool,
}

impl<'a> Job<'a> {
    fn resolve(arguments: &'a TrainArgs, fleet: Option<&Fleet>) -> Result<Self> {
        let kind = arguments.model.model;
        let is_words = kind == ModelKind::Word2vec;
        let shape = arguments.model.resolve()?;
        // Whatever is wrong with the rate is said before files are looked for.
        arguments.optimizer.resolve(kind, Some(1))?;
        let owner = || kind.name().to_owned();
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
        let (forbidden, takers): (&[(bool, &'static str)], _) =
            if is_words { (&rows_only, "models that read rows") } else { (&words_only, "word2vec") };
        if kind == ModelKind::Counter && !arguments.test.is_empty() {
            return Err(Error::MeaninglessOption { option: "--test", owner: owner(), takers: "models that predict" });
        }
        if let Some(&(_, option)) = forbidden.iter().find(|(given, _)| *given) {
            return Err(Error::MeaninglessOption { option, owner: owner(), takers });
        }
        let data = arguments.data.resolve(kind)?;
        let train_files = expand(&arguments.train)?;
        let test_files = if arguments.test.is_empty() { Vec::new() } else { expand(&arguments.test)? };
        let batch = arguments.reading.batch.unwrap_or(match kind {
            ModelKind::Word2vec => 256,
            ModelKind::FitALine => 20,
            _ => 512,
        });
        let cluster = arguments.cluster.resolve(fleet.is_some())?;
        if let Some(path) = &arguments.vectors {
            check_file(path)?;
        }
        let is_click = !matches!(kind, ModelKind::Word2vec | ModelKind::FitALine | ModelKind::Counter);
        let salt = if is_click && !arguments.model.share_ids { data.salt() } else { None };
        let threads = match fleet {
            Some(fleet) => arguments.reading.asked_threads().unwrap_or(fleet.thread_num()),
            None => arguments.reading.threads(),
        };
        let saving = arguments.save.as_deref().map(|address| {
            let description = ModelDescription {
                model: shape.clone(),
                seed: arguments.seed,
                data: data.clone(),
                salt,
                complete: false,
                epochs: 0,
                vocabulary: Vec::new(),
            };
            let mode = cluster.as_ref().map(|choice| choice.strategy.mode());
            Saving::resolve(address, arguments.save_every.unwrap_or(0), arguments.resume, mode, description)
        });
        let saving = saving.transpose()?;
        let salt = saving.as_ref().map_or(salt, Saving::salt);
        if arguments.model.share_ids && salt.is_some() {
            let (expected, got) = ("a checkpoint whose slots share ids", "one whose ids are salted by slot".to_owned());
            return Err(Error::BadOption { option: "--resume", expected, got });
        }
        if let (Some(saving), None) = (&saving, fleet) {
            model_dir::probe(saving.address())?;
        }
        Ok(Job { arguments, shape, data, salt, train_files, test_files, threads, batch, cluster, saving })
    }

    /// Workers share the threads of this process.
    fn threads_of_a_worker(&self) -> usize {
        let inside = self.cluster.as_ref().map_or(1, |choice| choice.workers as usize);
        (self.threads / inside).max(1)
    }

    /// Every worker of this process, with its part of the files.
    fn workers(&self, place: &Place) -> Result<Vec<WorkerRun<'a>>> {
        let (count, threads) = (place.worker_count(), self.threads_of_a_worker());
        let worker = |rank: usize| {
            // Text is numbered as a whole: every worker reads all of it, and trains on its part.
            let train_files = match self.arguments.model.model {
                ModelKind::Word2vec => self.train_files.clone(),
                _ => split_files(&self.train_files, rank, count),
            };
            let job = Job { train_files, threads, ..self.clone() };
            let mut network = job.shape.build(&job.data.schema, self.arguments.seed, job.salt)?;
            let data = job.load((rank, count))?;
            let run_steps = data.batches_of_all().map(|batches| self.steps_of(batches * self.arguments.epochs, count));
            let minimize = self.arguments.optimizer.resolve(self.arguments.model.model, run_steps)?;
            minimize.minimize(&mut network.net.main, network.loss)?;
            let scope = Arc::new(Scope::new());
            let cluster = place.cluster(rank)?;
            let mut executor = match &cluster {
                Some(cluster) => Executor::on_cluster(scope, cluster.clone()),
                None => Executor::new(scope),
            };
            executor.run_startup(&network.net.startup)?;
            if let (Some(saving), None) = (job.saving.as_ref().filter(|saving| saving.resumes), &cluster) {
                saving.load(&mut executor, &network.net.main)?;
            }
            Ok(WorkerRun { job, network, minimize, data, executor, cluster, rank })
        };
        place.ranks().map(worker).collect()
    }

    /// How often so many batches of all workers move the tables: the same on every worker, since they are made for all of them.
    fn steps_of(&self, batches: u64, workers: usize) -> u64 {
        let (workers, threads) = (workers as u64, self.threads_of_a_worker() as u64);
        let together = match self.cluster.as_ref().map(|choice| choice.strategy.mode()) {
            // The gradients of all streams are one step, or those of one worker.
            Some(Mode::Sync) => workers * threads,
            Some(Mode::HalfAsync) => threads,
            // Every worker has tables of its own.
            Some(Mode::Geo) => workers,
            _ => 1,
        };
        batches.div_ceil(together)
    }

    /// A click model's batch is shared by the threads. Each works on its part on its own and the others' updates reach it
    /// a part late, so whole batches for each thread would learn as from a batch that many times as large; parts cost
    /// half of that (docs/benchmarks.md). A part has at least 128 rows, below which the products lose speed.
    fn rows_of_a_thread(&self) -> usize {
        match self.arguments.model.model {
            ModelKind::Word2vec | ModelKind::FitALine | ModelKind::Counter => self.batch,
            _ => (self.batch / self.threads).max(128).min(self.batch),
        }
    }

    /// The training data: streaming, or in memory where asked. Text is always in memory.
    fn load(&self, part: (usize, usize)) -> Result<TrainingData> {
        let Some(config) = self.arguments.reading.config(&self.data, &self.train_files, self.rows_of_a_thread()) else {
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
        // Batches that are dealt have to come in order.
        let config = if self.deals() { config.thread_num(1) } else { config };
        if !self.arguments.in_memory {
            return Ok(TrainingData::Queue(QueueDataset::new(config)?));
        }
        let mut dataset = InMemoryDataset::new(config)?;
        dataset.load_into_memory()?;
        Ok(TrainingData::Memory(dataset))
    }

    /// Whether batches are the same ones in every run.
    fn deals(&self) -> bool {
        self.saving.as_ref().is_some_and(Saving::deals)
    }

    /// In a job every worker judges its part of the files, and all get the whole.
    fn test(&self, executor: &mut Executor, network: &Network, place: &Place, stop: &AtomicBool) -> Result<Evaluation> {
        let Place::Job(fleet) = place else {
            return self.test_on(&self.test_files, executor, network, stop);
        };
        let own = fleet.split_files(&self.test_files)?;
        let part = if own.is_empty() { Evaluation::default() } else { self.test_on(own, executor, network, stop)? };
        part.of_all_workers(network, |values| place.all_reduce(Reduce::Sum, values))
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

    /// What the options came to, in one line.
    fn description(&self, network: &Network, minimize: &Minimize, data: &TrainingData) -> String {
        let size: u64 = self.train_files.iter().filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum();
        let source = match data {
            TrainingData::Queue(_) => "streaming".to_owned(),
            TrainingData::Memory(dataset) => format!("{} rows in memory", count(dataset.memory_rows() as u64)),
            TrainingData::Words(dataset) => {
                format!("{} words, {} different ones", count(dataset.raw_words()), count(dataset.words().len() as u64))
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

    fn summary(
        &self,
        network: &Network,
        minimize: &Minimize,
        scope: &Scope,
        data: &TrainingData,
        trained: &TrainingReport,
        evaluation: Option<&Evaluation>,
    ) -> Summary {
        let seconds = trained.elapsed.as_secs_f64();
        let tables = table_names(&network.net.main);
        let words = data.words().map(|_| trained.words);
        Summary {
            model: self.shape.name(),
            optimizer: minimize.optimizer.name(),
            epochs: trained.epochs,
            threads: self.threads,
            batch: self.batch,
            samples: trained.samples,
            skipped_samples: trained.skipped_samples,
            seconds,
            samples_per_second: trained.samples as f64 / seconds.max(1e-9),
            waiting_share: waiting_share(trained.waited, trained.elapsed, self.threads),
            train_loss: trained.loss,
            train_auc: trained.auc,
            test_rows: evaluation.map(|evaluation| evaluation.rows),
            test_auc: evaluation.and_then(|evaluation| evaluation.auc),
            test_logloss: evaluation.and_then(|evaluation| evaluation.logloss),
            test_accuracy: evaluation.and_then(|evaluation| evaluation.accuracy),
            test_mse: evaluation.and_then(|evaluation| evaluation.mse),
            test_mae: evaluation.and_then(|evaluation| evaluation.mae),
            test_seconds: evaluation.map(|evaluation| evaluation.seconds),
            parameters: network.parameter_count(),
            rows_in_tables: tables.iter().filter_map(|name| scope.sparse(name)).map(|table| table.len()).sum(),
            skipped_lines: trained.skipped_lines,
            refused_gradients: trained.refused_gradients,
            test_skipped_lines: evaluation.map_or(0, |evaluation| evaluation.skipped_lines),
            words,
            words_per_second: words.map(|words| words as f64 / seconds.max(1e-9)),
            vocabulary: data.words().map(<[String]>::len),
            peak_rss_bytes: peak_rss_bytes(),
            ..Summary::default()
        }
    }
}

impl WorkerRun<'_> {
    fn train(&mut self, stop: &AtomicBool, tell: Option<&(dyn Fn(u64, f64) + Sync)>) -> Result<TrainingReport> {
        let WorkerRun { job, network, data, executor, cluster, rank, .. } = self;
        let (network, rank) = (&*network, *rank);
        let Job { arguments, threads, saving, .. } = &*job;
        let (epochs, threads) = (arguments.epochs, *threads);
        let quiet = arguments.quiet || tell.is_none();
        let meter = Meter::new(network, epochs, quiet, arguments.print_period);
        let meter = match tell {
            Some(tell) => meter.telling(tell),
            None => meter,
        };
        let saver = saving.as_ref().map(Saver::new);
        let on_pause = |pause: &Pause<'_>| saver.as_ref().map_or(Ok(()), |saver| saver.save(pause));
        let mut total = TrainingReport::default();
        for epoch in 1..=epochs {
            data.begin_epoch(arguments.seed, epoch)?;
            network.zero_auc(executor.scope())?;
            meter.begin_epoch(epoch);
            let dealt = RoundRobinDataset::new(data.dataset(), threads);
            // On servers batches are always dealt.
            let watched = Watched::new(if job.deals() && cluster.is_none() { &dealt } else { data.dataset() });
            let each_batch = |view: &BatchView<'_>| meter.batch_done(view);
            let observer = |observation: &Observation| meter.observe(observation, threads);
            let fetch: Vec<_> = network.auc.iter().map(|auc| auc.auc).collect();
            let options = RunOptions {
                threads,
                fetch: &fetch,
                fetch_info: &[],
                print_period: meter.period(),
                observer: Some(&observer),
                each_batch: Some(&each_batch),
                stop: Some(stop),
                debug: arguments.debug,
                resume: job.deals(),
                pause_every: saving.as_ref().map_or(0, |saving| saving.pause_every(rank)),
                on_pause: Some(&on_pause),
            };
            let report = executor.train_from_dataset(&network.net.main, &watched, &options);
            if report.is_err() {
                meter.finish();
            }
            let report = report?;
            if report.skipped {
                remark(&format!("epoch {epoch} was complete before this worker was restarted: it is skipped"));
                total.add(&report, watched.rows_done());
                continue;
            }
            if report.skipped_steps > 0 {
                let (batches, rows) = (count(report.skipped_steps), count(report.skipped_samples));
                remark(&format!("skipped {batches} batches of epoch {epoch} that were trained before: {rows} rows"));
            }
            total.auc = network.counted_auc(executor.scope());
            total.loss = meter.end_epoch(&report, total.auc, threads);
            total.add(&report, watched.rows_done());
            if report.steps > 0 && report.refused_gradients >= report.steps {
                // Tables refuse what would ruin them; where they refuse step after step, nothing is learnt any more.
                meter.finish();
                let name = network.net.main.variable(network.loss).name.clone();
                let value = total.loss.unwrap_or(f64::INFINITY);
                return Err(openfleet_engine::Error::NotFinite { name, value, step: report.steps }.into());
            }
            if arguments.debug {
                meter.say(&profile(&report));
            }
            let mut interrupted = report.stopped || stop.load(Ordering::Relaxed);
            if let (Some(saving), Some(cluster)) = (saving, &*cluster) {
                let program = &network.net.main;
                interrupted = saving.epoch_ended(executor, program, cluster, rank, epoch, interrupted)?;
            }
            if interrupted {
                total.interrupted = report.stopped || epoch < epochs;
                break;
            }
        }
        meter.finish();
        Ok(total)
    }
}

impl TrainingReport {
    fn add(&mut self, report: &RunReport, rows_done: u64) {
        self.epochs += 1;
        match report.skipped {
            true => self.skipped_samples += report.samples,
            false => {
                self.samples += report.samples;
                self.skipped_samples += report.skipped_samples;
            }
        }
        self.elapsed += report.elapsed;
        self.waited += report.waited;
        self.words += rows_done;
        // Every pass meets the same bad lines.
        self.skipped_lines = self.skipped_lines.max(report.skipped_lines);
        self.refused_gradients += report.refused_gradients;
    }

    /// In a job: adds what the other processes did at the same time, and gives every worker's samples a second.
    fn of_all_workers(&mut self, place: &Place) -> Result<Option<Vec<f64>>> {
        if !matches!(place, Place::Job(_)) {
            return Ok(None);
        }
        let elapsed = self.elapsed.as_secs_f64();
        let mut rates = vec![0.0; place.worker_count()];
        rates[place.ranks().start] = self.samples as f64 / elapsed.max(1e-9);
        let mut sums = [
            self.samples as f64,
            self.waited.as_secs_f64(),
            self.words as f64,
            self.skipped_lines as f64,
            self.refused_gradients as f64,
            f64::from(u8::from(self.interrupted)),
            self.skipped_samples as f64,
        ];
        let mut longest = [elapsed];
        place.all_reduce(Reduce::Sum, &mut rates)?;
        place.all_reduce(Reduce::Sum, &mut sums)?;
        place.all_reduce(Reduce::Max, &mut longest)?;
        let [samples, waited, words, skipped_lines, refused_gradients, interrupted, skipped_samples] = sums;
        self.samples = samples as u64;
        self.skipped_samples = skipped_samples as u64;
        self.waited = Duration::from_secs_f64(waited);
        self.words = words as u64;
        self.skipped_lines = skipped_lines as u64;
        self.refused_gradients = refused_gradients as u64;
        self.interrupted = interrupted > 0.0;
        self.elapsed = Duration::from_secs_f64(longest[0]);
        Ok(Some(rates))
    }

    /// Adds what another worker did at the same time.
    fn join(&mut self, other: TrainingReport) {
        self.samples += other.samples;
        self.skipped_samples += other.skipped_samples;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.waited += other.waited;
        self.words += other.words;
        self.skipped_lines += other.skipped_lines;
        self.refused_gradients += other.refused_gradients;
        self.interrupted |= other.interrupted;
    }
}

impl Summary {
    /// The result in words.
    fn tell(&self, evaluation: Option<&Evaluation>) {
        if let Some(evaluation) = evaluation {
            result(&format!("test: {}", describe(evaluation)));
        }
        let mut parts = Vec::new();
        parts.extend(self.test_auc.map(|auc| format!("test AUC {auc:.4}")));
        parts.extend(
            self.test_auc.is_none().then_some(self.train_auc).flatten().map(|auc| format!("train AUC {auc:.4}")),
        );
        parts.extend(self.test_mse.map(|mse| format!("test MSE {mse:.4}")));
        match self.words_per_second {
            Some(words) => parts.push(format!("{} words/s", rate(words))),
            None => parts.push(format!("{} samples/s", rate(self.samples_per_second))),
        }
        let time = duration(Duration::from_secs_f64(self.seconds));
        parts.push(format!("{} samples in {time}", count(self.samples)));
        parts.extend(self.peak_rss_bytes.map(|peak| format!("{} of memory", bytes(peak))));
        let skipped = self.skipped_lines + self.test_skipped_lines;
        parts.extend((skipped > 0).then(|| format!("{} bad lines skipped", count(skipped))));
        let refused = self.refused_gradients;
        parts.extend((refused > 0).then(|| format!("{} gradients refused as not finite", count(refused))));
        result(&format!("{}: {}", self.model, parts.join(", ")));
    }
}

/// The figures of a test pass in words.
pub(crate) fn describe(evaluation: &Evaluation) -> String {
    let mut parts = Vec::new();
    parts.extend(evaluation.auc.map(|auc| format!("AUC {auc:.4}")));
    parts.extend(evaluation.logloss.map(|logloss| format!("logloss {logloss:.4}")));
    parts.extend(evaluation.accuracy.map(|accuracy| format!("accuracy {accuracy:.4}")));
    parts.extend(evaluation.mse.map(|mse| format!("MSE {mse:.4}")));
    parts.extend(evaluation.mae.map(|mae| format!("MAE {mae:.4}")));
    parts.push(format!("{} rows", count(evaluation.rows)));
    parts.join(", ")
}

/// What training goes over.
enum TrainingData {
    Queue(QueueDataset),
    Memory(InMemoryDataset),
    Words(WordsDataset),
}

impl TrainingData {
    fn dataset(&self) -> &dyn Dataset {
        match self {
            TrainingData::Queue(dataset) => dataset,
            TrainingData::Memory(dataset) => dataset,
            TrainingData::Words(dataset) => dataset,
        }
    }

    fn begin_epoch(&mut self, seed: u64, epoch: u64) -> Result<()> {
        if let TrainingData::Memory(dataset) = self {
            dataset.local_shuffle(openfleet_core::key::mix(seed ^ openfleet_core::key::mix(epoch)))?;
        }
        Ok(())
    }

    fn is_loaded(&self) -> bool {
        !matches!(self, TrainingData::Queue(_))
    }

    /// Batches of all workers in an epoch, where known beforehand.
    fn batches_of_all(&self) -> Option<u64> {
        match self {
            TrainingData::Words(dataset) => Some(dataset.batches_of_all()),
            _ => None,
        }
    }

    fn words(&self) -> Option<&[String]> {
        match self {
            TrainingData::Words(dataset) => Some(dataset.words()),
            _ => None,
        }
    }
}

/// Fails where a file cannot be written after an hour of training: its directory is missing, or it is one.
fn check_file(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::read_dir(directory).map_err(Error::io("write into", directory))?;
    match path.is_dir() {
        true => Err(Error::io("create", path)(std::io::ErrorKind::IsADirectory.into())),
        false => Ok(()),
    }
}

/// word2vec's text format: a line with both sizes, then a word and its vector a line, the most frequent word first. The
/// vectors are looked up by a program of their own, wherever the tables are: it sees what all workers have sent.
fn write_vectors(path: &Path, shape: &ModelShape, executor: &mut Executor, words: &[String]) -> Result<()> {
    const AT_ONCE: usize = 1024;
    let ModelShape::Word2vec { dim, .. } = *shape else { return Ok(()) };
    let mut net = Net::new();
    let word = net.slot("word")?;
    let table = ParamAttr::named(INPUT_TABLE);
    let vector = net.embedding(word, dim, &EmbeddingOptions { table, ..EmbeddingOptions::default() })?;
    let file = std::fs::File::create(path).map_err(Error::io("create", path))?;
    let mut file = BufWriter::new(file);
    let failed = Error::io("write", path);
    let mut lines = format!("{} {dim}\n", words.len());
    let mut written = Ok(());
    for (chunk, words) in words.chunks(AT_ONCE).enumerate() {
        let keys: Vec<u64> = (0..words.len()).map(|at| (chunk * AT_ONCE + at) as u64).collect();
        let ids: Vec<&[u64]> = keys.chunks(1).collect();
        let rows = executor.run(&net.main, Feed::new().slot("word", &ids)?, &[vector])?;
        let rows = rows.first().and_then(Tensor::f32s).unwrap_or_default();
        for (word, row) in words.iter().zip(rows.chunks_exact(dim)) {
            lines.push_str(word);
            row.iter().for_each(|value| lines.push_str(&format!(" {value}")));
            lines.push('\n');
        }
        written = written.and_then(|()| file.write_all(lines.as_bytes()));
        lines.clear();
    }
    written.and_then(|()| file.flush()).map_err(failed)
}

fn profile(report: &RunReport) -> String {
    let all: f64 = report.profile.iter().map(|(_, time)| time.as_secs_f64()).sum();
    let lines = report.profile.iter().map(|(op, time)| {
        let seconds = time.as_secs_f64();
        format!("  {:>6.2} % {:>10.3} ms  {op}", 100.0 * seconds / all.max(1e-12), 1e3 * seconds)
    });
    let mut text = format!("time in ops, all threads: {all:.3} s");
    lines.for_each(|line| {
        text.push('\n');
        text.push_str(&line);
    });
    text
}

/// The most memory this process ever had; `None` where the system does not say.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
