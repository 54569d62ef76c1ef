//! One pass over a dataset on several threads: each takes the next batch, computes on its own core and pushes.
//!
//! Threads share only the tables and states of the plan. The plan decides whether a pass trains and where the values are, so an
//! [`Executor`](crate::Executor) and a [`Predictor`](crate::Predictor) run the same passes. This file pauses the threads; the
//! caller decides what to do in a pause.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use openfleet_core::{Batch, Schema, WorkId};
use openfleet_dist::Cluster;
use parking_lot::Mutex;
use tracing::warn;

use crate::dataset::{self, BatchReader, Dataset};
use crate::error::{Error, Result};
use crate::memory::{Arena, NextRows, StepTimes};
use crate::run::{BatchView, Observation, Plan, RunOptions, RunReport};

/// The job that a pass is part of.
#[derive(Clone, Copy, Default)]
pub(crate) struct Job<'a> {
    /// Servers that number the steps.
    pub(crate) servers: Option<&'a Cluster>,
    /// Rank and number of the workers.
    pub(crate) others: Option<(usize, usize)>,
}

/// Runs the threads over a dataset until it ends. While all of them are paused, `on_pause` is called with the number of batches
/// that each has done. After [`Error::ThreadPanicked`] the threads must not be used again.
pub(crate) fn run(
    plan: &Plan,
    threads: &mut [TrainingThread],
    dataset: &dyn Dataset,
    options: &RunOptions<'_>,
    job: Job<'_>,
    on_pause: &dyn Fn(Vec<u64>) -> Result<()>,
) -> Result<RunReport> {
    let started = Instant::now();
    let reader = dataset.open()?;
    let pass = PassState {
        has_several_threads: threads.len() > 1,
        plan,
        reader: reader.as_ref(),
        options,
        servers: job.servers,
        started,
        samples: AtomicU64::new(0),
        times: Mutex::default(),
        failed: AtomicBool::new(false),
    };
    let mut failed_pause = Ok(());
    let mut outcomes: Vec<Result<ThreadReport>> = threads.iter().map(|_| Ok(ThreadReport::default())).collect();
    loop {
        pass.run_until_pause(threads, &mut outcomes);
        if !outcomes.iter().any(|outcome| matches!(outcome, Ok(report) if report.paused)) {
            break;
        }
        if pass.failed.load(Ordering::Relaxed) {
            // Paused threads still have to finish properly, because other workers may wait for them.
            continue;
        }
        if let Err(error) = on_pause(threads.iter().map(|thread| thread.steps).collect()) {
            pass.failed.store(true, Ordering::Relaxed);
            failed_pause = Err(error);
        }
    }
    // Report a panic before the errors that it may have caused.
    let panicked = |outcome: &Result<_>| matches!(outcome, Err(Error::ThreadPanicked { .. }));
    if let Some(at) = outcomes.iter().position(panicked) {
        outcomes.swap_remove(at)?;
    }
    failed_pause?;
    let mut report = RunReport { elapsed: started.elapsed(), ..RunReport::default() };
    for outcome in outcomes {
        let thread = outcome?;
        report.steps += thread.steps;
        report.samples += thread.samples;
        report.times += thread.times;
        report.refused_gradients += thread.refused_gradients;
        report.stopped |= thread.stopped;
        report.skipped_steps += thread.skipped_steps;
        report.skipped_samples += thread.skipped_samples;
    }
    report.skipped_lines = reader.progress().skipped_lines;
    if report.samples + report.skipped_samples == 0 && !report.stopped {
        check_no_rows(dataset, report.skipped_lines, job.others)?;
    }
    if options.debug {
        report.profile = profile(plan, threads);
    }
    Ok(report)
}

/// A pass without rows is an error, unless there are other workers: then this worker takes part without data.
fn check_no_rows(dataset: &dyn Dataset, skipped_lines: u64, others: Option<(usize, usize)>) -> Result<()> {
    let data = dataset.describe();
    match others {
        Some((rank, count)) if count > 1 => {
            warn!("worker {rank} has no rows in this pass ({data}, {skipped_lines} bad lines skipped)");
            Ok(())
        }
        _ => Err(dataset::Error::NoRows { data, skipped_lines }.into()),
    }
}

/// The memory of one training thread, reused from pass to pass.
pub(crate) struct TrainingThread {
    pub(crate) arena: Arena,
    /// Reused for every batch while the schema stays the same.
    batch: Batch,
    /// The batch after it, if `is_ahead`: it was read early so that its rows could be requested.
    next_batch: Batch,
    is_ahead: bool,
    schema: Option<Schema>,
    /// Batches done.
    pub(crate) steps: u64,
    /// Batches to skip, because they were trained before.
    pub(crate) skip: u64,
}

impl TrainingThread {
    pub(crate) fn new(plan: &Plan) -> Self {
        let (batch, next_batch) = (Batch::default(), Batch::default());
        TrainingThread { arena: plan.arena(), batch, next_batch, is_ahead: false, schema: None, steps: 0, skip: 0 }
    }

    /// Makes the next step pull every dense value.
    pub(crate) fn invalidate_dense(&mut self) {
        self.arena.dense.iter_mut().for_each(|stage| stage.version = 0);
    }

    /// Prepares the thread for a pass over rows of this schema.
    pub(crate) fn prepare(&mut self, plan: &Plan, schema: &Schema, options: &RunOptions<'_>) -> Result<()> {
        plan.bind(&mut self.arena, schema)?;
        self.is_ahead = false;
        // Others may have trained in between, so the copies of dense values may be stale.
        self.invalidate_dense();
        self.arena.profile = options.debug.then(|| vec![0; plan.op_names().len()]);
        if self.schema.as_ref() != Some(schema) {
            self.batch = Batch::new(schema);
            self.next_batch = Batch::new(schema);
            self.schema = Some(schema.clone());
        }
        Ok(())
    }
}

/// What the training threads of one pass share.
struct PassState<'a> {
    /// Whether there is more than one thread.
    has_several_threads: bool,
    plan: &'a Plan,
    reader: &'a (dyn BatchReader + 'a),
    options: &'a RunOptions<'a>,
    /// Servers that number the steps. By these numbers they recognise pushes that they have applied.
    servers: Option<&'a Cluster>,
    started: Instant,
    samples: AtomicU64,
    /// The time of the steps of all threads.
    times: Mutex<StepTimes>,
    /// A thread failed: the others stop after their batch.
    failed: AtomicBool,
}

#[derive(Default)]
struct ThreadReport {
    steps: u64,
    samples: u64,
    times: StepTimes,
    refused_gradients: u64,
    stopped: bool,
    skipped_steps: u64,
    skipped_samples: u64,
    /// The thread has started and is not done.
    paused: bool,
    /// The thread has done all its batches.
    done: bool,
}

impl ThreadReport {
    /// Counts a batch that was trained before.
    fn skip(&mut self, batch: &Batch) {
        self.skipped_steps += 1;
        self.skipped_samples += batch.rows as u64;
    }
}

impl PassState<'_> {
    /// Runs all threads until they pause or are done.
    fn run_until_pause(&self, threads: &mut [TrainingThread], outcomes: &mut [Result<ThreadReport>]) {
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..)
                .zip(threads.iter_mut().zip(outcomes.iter_mut()))
                .filter(|(_, (_, outcome))| matches!(outcome, Ok(report) if !report.done))
                .map(|(stream, (thread, outcome))| {
                    let report = std::mem::replace(outcome, Ok(ThreadReport::default())).unwrap_or_default();
                    (outcome, scope.spawn(move || self.run_and_catch(stream, thread, report)))
                })
                .collect();
            for (outcome, handle) in running {
                *outcome = handle.join().unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
            }
        });
    }

    /// Runs one thread. An error or panic stops the other threads too.
    fn run_and_catch(&self, stream: u32, thread: &mut TrainingThread, report: ThreadReport) -> Result<ThreadReport> {
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| self.train(stream, thread, report)))
            .unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
        if outcome.is_err() {
            self.failed.store(true, Ordering::Relaxed);
            self.reader.end();
            if self.plan.trains() && self.has_several_threads && self.plan.communicator().steps_together() {
                // The other threads may wait for this one at a step that it will never take.
                self.plan.communicator().abandon();
            }
        }
        outcome
    }

    fn train(&self, stream: u32, thread: &mut TrainingThread, report: ThreadReport) -> Result<ThreadReport> {
        if !self.plan.trains() {
            return self.run_steps(stream, thread, report);
        }
        let mut report = report;
        if !report.paused {
            let started = Instant::now();
            self.plan.communicator().begin(stream)?;
            report.times.barrier += started.elapsed();
            report.times.waited += started.elapsed();
        }
        let report = self.run_steps(stream, thread, report);
        if matches!(report, Ok(ThreadReport { paused: true, .. })) {
            return report;
        }
        // A thread that failed, or was stopped to be restarted, has not finished its pass: its successor continues it.
        let mut report = report?;
        // When one thread stops early, the data ends for the others too. They have not finished their pass either.
        if self.servers.is_some() && self.failed.load(Ordering::Relaxed) {
            return Ok(report);
        }
        let is_stopped = self.options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        if is_stopped && self.servers.is_some_and(Cluster::will_restart) {
            self.plan.communicator().abandon();
            return Ok(report);
        }
        let started = Instant::now();
        self.plan.communicator().finish(stream)?;
        report.times.push += started.elapsed();
        report.times.waited += started.elapsed();
        Ok(report)
    }

    fn run_steps(&self, stream: u32, thread: &mut TrainingThread, mut report: ThreadReport) -> Result<ThreadReport> {
        report.paused = false;
        report.done = true;
        // During a pause, tables may have changed.
        thread.arena.next_rows = NextRows::Unknown;
        let until = match self.options.pause_every {
            0 => u64::MAX,
            every => report.steps + every,
        };
        let mut is_ended = false;
        loop {
            if report.steps == until {
                (report.paused, report.done) = (true, false);
                return Ok(report);
            }
            if self.failed.load(Ordering::Relaxed) {
                return Ok(report);
            }
            if self.options.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                self.reader.end();
                report.stopped = true;
                return Ok(report);
            }
            let waiting = Instant::now();
            if std::mem::take(&mut thread.is_ahead) {
                std::mem::swap(&mut thread.batch, &mut thread.next_batch);
            } else if is_ended || !self.reader.next_for(stream, &mut thread.batch)? {
                return Ok(report);
            }
            if thread.skip > 0 {
                thread.skip -= 1;
                report.skip(&thread.batch);
                continue;
            }
            let mut data = waiting.elapsed();
            if self.plan.trains() && (self.servers.is_some() || self.plan.replicated().is_some()) {
                let step = self.plan.communicator().next_step(stream)?;
                thread.steps = step.number;
                if step.is_applied {
                    thread.arena.next_rows = NextRows::Unknown;
                    thread.steps += 1;
                    report.skip(&thread.batch);
                    continue;
                }
            }
            if self.plan.reads_ahead() {
                let waiting = Instant::now();
                thread.is_ahead = !is_ended && self.reader.next_for(stream, &mut thread.next_batch)?;
                is_ended = !thread.is_ahead;
                data += waiting.elapsed();
            }
            let work = WorkId::step(stream, thread.steps);
            let next = thread.is_ahead.then_some(&thread.next_batch);
            let pushed = self.plan.step_before(&mut thread.arena, &thread.batch, work, next)?;
            let mut times = std::mem::take(&mut thread.arena.times);
            times.data += data;
            times.waited += data;
            report.times += times;
            *self.times.lock() += times;
            thread.steps += 1;
            report.steps += 1;
            report.refused_gradients += pushed.non_finite as u64;
            report.samples += thread.batch.rows as u64;
            self.samples.fetch_add(thread.batch.rows as u64, Ordering::Relaxed);
            if let Some(each_batch) = self.options.each_batch {
                each_batch(&BatchView { plan: self.plan, arena: &thread.arena, batch: &thread.batch })?;
            }
            if stream == 0 {
                self.observe(thread, report.steps)?;
            }
        }
    }

    fn observe(&self, thread: &TrainingThread, step: u64) -> Result<()> {
        let RunOptions { print_period, observer: Some(observer), fetch, .. } = *self.options else { return Ok(()) };
        if print_period == 0 || !step.is_multiple_of(print_period) {
            return Ok(());
        }
        let values =
            fetch.iter().map(|&var| self.plan.fetch(&thread.arena, &thread.batch, var)).collect::<Result<_>>()?;
        let names = fetch.iter().map(|&var| self.plan.name(var));
        let info = names.enumerate().map(|(i, name)| (*self.options.fetch_info.get(i).unwrap_or(&name)).to_owned());
        observer(&Observation {
            step,
            values,
            info: info.collect(),
            samples: self.samples.load(Ordering::Relaxed),
            elapsed: self.started.elapsed(),
            times: *self.times.lock(),
            progress: self.reader.progress(),
        });
        Ok(())
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let message = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into());
    Error::ThreadPanicked { message }
}

fn profile(plan: &Plan, threads: &[TrainingThread]) -> Vec<(String, Duration)> {
    let names = plan.op_names();
    let mut times: Vec<(String, Duration)> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let nanos = threads.iter().filter_map(|t| t.arena.profile.as_ref()).map(|profile| profile[index]).sum();
        times.push((format!("{name} #{index}"), Duration::from_nanos(nanos)));
    }
    times.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    times
}
