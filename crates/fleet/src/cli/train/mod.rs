//! `openfleet train`: trains a model on files, evaluates it on others and saves it.
//!
//! [`args`] is the command line, [`job`] its checked form, [`worker`] the workers of this process, [`data`] what they read,
//! [`report`] what is printed at the end, [`vectors`] the word vectors of word2vec.

mod args;
mod data;
mod job;
mod report;
mod vectors;
mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use openfleet_dist::request::status::Status;
use openfleet_dist::{Cluster, Reduce};
use openfleet_engine::dataset;

pub(crate) use self::args::TrainArgs;
use self::job::Job;
pub(crate) use self::report::describe;
use self::report::{Summary, TrainingReport};
use self::vectors::write_vectors;
use self::worker::WorkerRun;
use super::Outcome;
use super::deployment::{self, Deployment};
use super::output::{plural, remark, result};
use super::saving::{Saving, save_with_retry};
use crate::error::Result;
use crate::fleet::Fleet;
use crate::model_dir;

/// Trains, as the worker or the server that this process is.
pub(crate) fn run(arguments: &TrainArgs, stop: &AtomicBool) -> Result<Outcome> {
    let fleet = deployment::launched(arguments.cluster.is_collective())?;
    match &fleet {
        Some(server) if server.is_server() => run_server(arguments, server, stop),
        _ => run_worker(arguments, fleet, stop),
    }
}

/// A server reads no files; with `--resume` it starts from the checkpoint, if there is one.
fn run_server(arguments: &TrainArgs, server: &Fleet, stop: &AtomicBool) -> Result<Outcome> {
    let mut checkpoint = None;
    if let Some(address) = arguments.save.as_deref() {
        model_dir::probe(address)?;
        if arguments.resume && model_dir::holds_checkpoint(address)? {
            checkpoint = Some(address);
        }
    }
    deployment::serve(server, stop, checkpoint)
}

fn run_worker(arguments: &TrainArgs, fleet: Option<Fleet>, stop: &AtomicBool) -> Result<Outcome> {
    let job = Job::resolve(arguments, fleet.as_ref())?;
    let rule = arguments.optimizer.resolve(arguments.model.model, Some(1))?;
    let resume = job.saving.as_ref().filter(|saving| saving.resumes).map(Saving::address);
    if let (true, Some(address)) = (arguments.resume && resume.is_none(), &arguments.save) {
        remark(&format!("no checkpoint to resume from in `{address}`: training starts from the beginning"));
    }
    let deployment = Deployment::start(fleet, job.cluster.clone(), job.threads_per_worker(), &rule, stop, resume)?;
    let loading = Instant::now();
    let mut workers = worker::prepare(&job, &deployment)?;
    let load_seconds = workers[0].data.is_loaded().then(|| loading.elapsed().as_secs_f64());
    if !arguments.quiet {
        remark(&job.description(&workers[0].network, &workers[0].minimize, &workers[0].data));
        deployment.describe().iter().for_each(|line| remark(line));
    }
    let on_progress = |samples, per_second| deployment.report_progress(samples, per_second);
    let mut trained = worker::train_all(&mut workers, &deployment, stop, &on_progress)?;
    if trained.interrupted && deployment.will_be_restarted() {
        remark("asked to stop: this worker ends now, and resumes here when it is restarted");
        return Ok(Outcome::Interrupted);
    }
    // Also a barrier: no worker evaluates before all have trained.
    let worker_samples_per_second = trained.of_all_workers(&deployment)?;
    check_rows(&job, &trained)?;
    let first = &mut workers[0];
    let mut interrupted = trained.interrupted;
    if interrupted {
        remark("interrupted: training ended after the current batch");
    }
    let evaluation = match interrupted || job.test_files.is_empty() {
        true => None,
        false => Some(job.test(&mut first.executor, &first.network, &deployment, stop)?),
    };
    if evaluation.as_ref().is_some_and(|evaluation| evaluation.stopped) {
        remark("interrupted: the evaluation covers only the first rows");
        interrupted = true;
    }
    if deployment.is_first_worker() {
        write_results(&job, &deployment, first, &trained)?;
    }

    let data = (&first.data, &**first.executor.scope());
    let summary = Summary::new(&job, &first.network, &first.minimize, data, &trained, evaluation.as_ref());
    let summary = Summary { load_seconds, interrupted, worker_samples_per_second, ..summary };
    let clusters: Vec<Arc<Cluster>> = workers.iter().filter_map(|worker| worker.cluster.clone()).collect();
    let summary = leave_servers(&deployment, &clusters, summary)?;
    if deployment.is_first_worker() {
        summary.print(evaluation.as_ref());
        if arguments.json {
            // Numbers, strings and options always serialize.
            result(&serde_json::to_string(&summary).unwrap_or_default());
        }
    }
    Ok(if interrupted { Outcome::Interrupted } else { Outcome::Done })
}

/// Fails if no worker found a row.
fn check_rows(job: &Job<'_>, trained: &TrainingReport) -> Result<()> {
    if trained.samples + trained.skipped_samples > 0 || trained.interrupted {
        return Ok(());
    }
    let data = plural(job.train_files.len(), "training file");
    let none = dataset::Error::NoRows { data, skipped_lines: trained.skipped_lines };
    Err(openfleet_engine::Error::from(none).into())
}

/// The files that the first worker writes after training: word vectors and the last checkpoint.
fn write_results(
    job: &Job<'_>,
    deployment: &Deployment,
    first: &mut WorkerRun<'_>,
    trained: &TrainingReport,
) -> Result<()> {
    let vocabulary = first.data.vocabulary().unwrap_or_default();
    if let Some(path) = &job.arguments.vectors {
        write_vectors(path, &job.shape, &mut first.executor, vocabulary)?;
        remark(&format!("word vectors are in `{}`", path.display()));
    }
    if let Some(saving) = &job.saving {
        let complete_epochs = trained.epochs.saturating_sub(u64::from(trained.interrupted));
        let options = saving.last(vocabulary.to_vec(), complete_epochs, !trained.interrupted);
        let (executor, program) = (&mut first.executor, &first.network.net.main);
        save_with_retry(|| deployment.save(executor, program, saving.address(), &options))?;
        remark(&format!("the model is in `{}`", saving.address()));
    }
    Ok(())
}

/// Adds what the servers know to the summary, and ends the membership of this process's workers.
fn leave_servers(deployment: &Deployment, clusters: &[Arc<Cluster>], summary: Summary) -> Result<Summary> {
    let Some(first) = clusters.first() else {
        deployment.leave(clusters)?;
        return Ok(summary);
    };
    let rows = |status: &Status| status.sparse.iter().map(|(_, rows, _)| *rows as usize).sum::<usize>();
    let rows_in_tables = first.status()?.iter().map(rows).sum();
    let traffic = clusters.iter().map(|cluster| cluster.traffic());
    let (sent, received) = traffic.fold((0, 0), |sum, (sent, received)| (sum.0 + sent, sum.1 + received));
    let mut moved = [sent as f64, received as f64];
    deployment.all_reduce(Reduce::Sum, &mut moved)?;
    let [bytes_sent, bytes_received] = moved.map(|bytes| Some(bytes as u64));
    deployment.leave(clusters)?;
    Ok(Summary { rows_in_tables, bytes_sent, bytes_received, ..summary })
}
