//! The workers of this process: their networks, data and executors, and the loop over the epochs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openfleet_dist::{Cluster, SaveOptions};
use openfleet_engine::dataset::{RoundRobinDataset, split_files};
use openfleet_engine::{BatchView, Executor, Minimize, Observation, Pause, RunOptions, RunReport, Scope};

use super::data::TrainingData;
use super::job::Job;
use super::report::TrainingReport;
use crate::cli::deployment::Deployment;
use crate::cli::model_choice::ModelKind;
use crate::cli::output::{count, remark};
use crate::cli::progress::{Meter, Watched};
use crate::cli::saving::Saver;
use crate::error::{Error, Result};
use crate::model::Network;

/// One worker: its network, its part of the data, and the executor that trains it.
pub(super) struct WorkerRun<'a> {
    /// The job with this worker's files and threads.
    pub(super) job: Job<'a>,
    pub(super) network: Network,
    pub(super) minimize: Minimize,
    pub(super) data: TrainingData,
    pub(super) executor: Executor,
    pub(super) cluster: Option<Arc<Cluster>>,
    pub(super) rank: usize,
}

/// Called on the first worker with the samples so far and the samples per second.
pub(super) type OnProgress<'a> = dyn Fn(u64, f64) + Sync + 'a;

/// Prepares every worker of this process.
pub(super) fn prepare<'a>(job: &Job<'a>, deployment: &Deployment) -> Result<Vec<WorkerRun<'a>>> {
    deployment.ranks().map(|rank| WorkerRun::prepare(job, deployment, rank)).collect()
}

/// Trains all workers of this process at once, one thread each. Loss and AUC are the first worker's; counts are totals.
pub(super) fn train_all(
    workers: &mut [WorkerRun<'_>],
    deployment: &Deployment,
    stop: &AtomicBool,
    on_progress: &OnProgress<'_>,
) -> Result<TrainingReport> {
    let outcomes: Vec<Result<TrainingReport>> = std::thread::scope(|scope| {
        let handles: Vec<_> = workers
            .iter_mut()
            .enumerate()
            .map(|(rank, worker)| {
                let train = move || {
                    let on_progress = (rank == 0).then_some(on_progress);
                    let report = worker.train(deployment, stop, on_progress);
                    if report.is_err() && !matches!(deployment, Deployment::Job(_)) {
                        // Stop the other workers of this process, which would wait for this one. A failed process of a job
                        // does not depart, because the launcher may restart it.
                        stop.store(true, Ordering::Relaxed);
                        worker.cluster.iter().for_each(|cluster| drop(cluster.close()));
                        deployment.fail(rank);
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

impl<'a> WorkerRun<'a> {
    fn prepare(job: &Job<'a>, deployment: &Deployment, rank: usize) -> Result<Self> {
        let (arguments, workers, threads) = (job.arguments, deployment.worker_count(), job.threads_per_worker());
        // word2vec numbers the words of the whole text: every worker reads all of it and trains its part.
        let train_files = match arguments.model.model {
            ModelKind::Word2vec => job.train_files.clone(),
            _ => split_files(&job.train_files, rank, workers).to_vec(),
        };
        let own = Job { train_files, threads, ..job.clone() };
        let mut network =
            own.shape.build(&own.data.schema, arguments.seed, own.salt, arguments.model.sizes.storage())?;
        let data = own.open_data((rank, workers))?;
        let updates = data.batches_of_all().map(|batches| job.update_count(batches * arguments.epochs, workers));
        let minimize = arguments.optimizer.resolve(arguments.model.model, updates)?;
        minimize.minimize(&mut network.net.main, network.loss)?;
        let cluster = deployment.cluster(rank)?;
        let mut executor = deployment.executor(rank, Arc::new(Scope::new()), cluster.as_ref())?;
        executor.run_startup(&network.net.startup)?;
        if let (Some(saving), None) = (own.saving.as_ref().filter(|saving| saving.resumes), &cluster) {
            saving.load(&mut executor, &network.net.main)?;
        }
        Ok(WorkerRun { job: own, network, minimize, data, executor, cluster, rank })
    }

    /// All epochs of this worker. Workers without `on_progress` show no progress.
    fn train(
        &mut self,
        deployment: &Deployment,
        stop: &AtomicBool,
        on_progress: Option<&OnProgress<'_>>,
    ) -> Result<TrainingReport> {
        let WorkerRun { job, network, data, executor, cluster, rank, .. } = self;
        let (network, rank) = (&*network, *rank);
        let Job { arguments, threads, saving, .. } = &*job;
        let (epochs, threads) = (arguments.epochs, *threads);
        let quiet = arguments.quiet || on_progress.is_none();
        let meter = Meter::new(network, epochs, quiet, arguments.print_period);
        let meter = match on_progress {
            Some(on_progress) => meter.reporting_to(on_progress),
            None => meter,
        };
        let saver = saving.as_ref().map(|saving| Saver::new(saving, deployment));
        let on_pause = |pause: &Pause<'_>| saver.as_ref().map_or(Ok(()), |saver| saver.save(pause));
        let mut total = TrainingReport::default();
        for epoch in 1..=epochs {
            data.begin_epoch(arguments.seed, epoch)?;
            network.zero_auc(executor.scope())?;
            meter.begin_epoch(epoch);
            let round_robin = RoundRobinDataset::new(data.dataset(), threads);
            // With servers the executor itself gives batches to threads in turn.
            let in_turn = job.has_fixed_batches() && cluster.is_none();
            let watched = Watched::new(if in_turn { &round_robin } else { data.dataset() });
            let each_batch = |view: &BatchView<'_>| meter.batch_done(view);
            let observer = |observation: &Observation| meter.observe(observation);
            let fetch: Vec<_> = network.auc.iter().map(|auc| auc.auc).collect();
            let options = RunOptions {
                threads,
                fetch: &fetch,
                fetch_info: &[],
                print_period: meter.period(),
                observer: Some(&observer),
                each_batch: Some(&each_batch),
                stop: Some(stop),
                debug: arguments.profile,
                resume: job.has_fixed_batches(),
                pause_every: saving.as_ref().map_or(0, |saving| saving.pause_every(rank)),
                on_pause: Some(&on_pause),
            };
            let report = executor.train_from_dataset(&network.net.main, &watched, &options);
            let report = report.inspect_err(|_| meter.finish())?;
            if report.skipped {
                remark(&format!("skipped epoch {epoch}: it was complete before this worker was restarted"));
                total.add(&report, watched.rows_done());
                continue;
            }
            if report.skipped_steps > 0 {
                let (batches, rows) = (count(report.skipped_steps), count(report.skipped_samples));
                remark(&format!("skipped {batches} batches of epoch {epoch} that were trained before: {rows} rows"));
            }
            total.auc = network.counted_auc(executor.scope());
            total.loss = meter.end_epoch(&report, total.auc);
            total.add(&report, watched.rows_done());
            if report.steps > 0 && report.refused_gradients >= report.steps {
                // Tables refuse gradients that are not finite. If they refused one in every step, nothing is learned any more.
                meter.finish();
                let name = network.net.main.variable(network.loss).name.clone();
                let value = total.loss.unwrap_or(f64::INFINITY);
                return Err(openfleet_engine::Error::NotFinite { name, value, step: report.steps }.into());
            }
            if arguments.profile {
                meter.print(&profile(&report));
            }
            let mut interrupted = report.stopped || stop.load(Ordering::Relaxed);
            if let (Some(saving), Some(cluster)) = (saving, &*cluster) {
                let mut save =
                    |options: &SaveOptions| deployment.save(executor, &network.net.main, saving.address(), options);
                interrupted = saving.end_epoch(cluster, rank, epoch, interrupted, &mut save)?;
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

/// The time of each phase and of each op, one line each.
fn profile(report: &RunReport) -> String {
    let phases = report.times.phases();
    let ops = report.profile.iter().map(|(op, time)| (op.as_str(), *time));
    format!("{}\n{}", table_of("phases", phases.into_iter()), table_of("ops", ops))
}

fn table_of<'a>(what: &str, times: impl Iterator<Item = (&'a str, Duration)> + Clone) -> String {
    let all: f64 = times.clone().map(|(_, time)| time.as_secs_f64()).sum();
    let lines = times.map(|(name, time)| {
        let seconds = time.as_secs_f64();
        format!("\n  {:>6.2} % {:>10.3} ms  {name}", 100.0 * seconds / all.max(1e-12), 1e3 * seconds)
    });
    format!("time in {what}, all threads: {all:.3} s{}", lines.collect::<String>())
}
