//! Progress during training: samples per second, loss, AUC, the phases of a step with their shares of the time, and the time left.
//!
//! It is a bar if standard error is a terminal, otherwise a line every few seconds. Training threads report each batch
//! ([`Meter::batch_done`]); the first thread updates the display when it is time ([`Meter::observe`]). [`Watched`] counts the rows
//! that a dataset has given, which the executor reports only at the end.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use openfleet_core::{Batch, Schema};
use openfleet_engine::dataset::{BatchReader, Dataset, Progress, Result as DataResult};
use openfleet_engine::{BatchView, Error, Observation, RunReport, StepTimes};

use super::output::{count, duration, rate, remark};
use crate::model::Network;

/// The time between two lines. The first line comes earlier, to show that training works.
const EVERY: Duration = Duration::from_secs(5);
const FIRST: Duration = Duration::from_secs(2);
const BAR_EVERY: Duration = Duration::from_millis(200);
const BAR_STEPS: u64 = 1000;

/// Shows the progress of training.
pub(crate) struct Meter<'a> {
    network: &'a Network,
    display: Display,
    /// Called with the samples so far and the samples per second whenever they are shown.
    on_progress: Option<&'a (dyn Fn(u64, f64) + Sync)>,
    epochs: u64,
    started: Instant,
    batches: AtomicU64,
    state: Mutex<State>,
}

enum Display {
    Quiet,
    /// One line per `period` batches of the first thread; 0: by time.
    Lines {
        period: u64,
    },
    Bar(ProgressBar),
}

#[derive(Default)]
struct State {
    epoch: u64,
    /// Since the start of the epoch.
    loss: Sum,
    /// Since the last line.
    recent_loss: Sum,
    shown: Option<Shown>,
}

/// The state at the last line.
struct Shown {
    at: Instant,
    samples: u64,
    times: StepTimes,
}

#[derive(Default, Clone, Copy)]
struct Sum {
    total: f64,
    rows: u64,
}

impl Sum {
    fn add(&mut self, total: f64, rows: u64) {
        self.total += total;
        self.rows += rows;
    }

    fn mean(self) -> Option<f64> {
        (self.rows > 0).then(|| self.total / self.rows as f64)
    }
}

impl<'a> Meter<'a> {
    /// For a run of `epochs` epochs; `period` is `--print-period`.
    pub(crate) fn new(network: &'a Network, epochs: u64, quiet: bool, period: Option<u64>) -> Self {
        let display = match (quiet, period) {
            (true, _) => Display::Quiet,
            (false, Some(period)) => Display::Lines { period },
            (false, None) if std::io::stderr().is_terminal() => Display::Bar(bar()),
            (false, None) => Display::Lines { period: 0 },
        };
        let state = Mutex::new(State::default());
        Meter {
            network,
            display,
            on_progress: None,
            epochs,
            started: Instant::now(),
            batches: AtomicU64::new(0),
            state,
        }
    }

    /// Also calls `on_progress` whenever progress is shown.
    pub(crate) fn reporting_to(self, on_progress: &'a (dyn Fn(u64, f64) + Sync)) -> Self {
        Meter { on_progress: Some(on_progress), ..self }
    }

    /// Starts an epoch.
    pub(crate) fn begin_epoch(&self, epoch: u64) {
        *self.state() = State { epoch, ..State::default() };
    }

    /// Counts a batch, on the thread that ran it. Fails if the loss is not finite.
    pub(crate) fn batch_done(&self, view: &BatchView<'_>) -> openfleet_engine::Result<()> {
        let batch = self.batches.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(loss) = view.fetch(self.network.loss)?.scalar() else { return Ok(()) };
        if !loss.is_finite() {
            let name = self.network.net.main.variable(self.network.loss).name.clone();
            return Err(Error::NotFinite { name, value: loss, step: batch });
        }
        let rows = view.batch.rows as u64;
        let total = if self.network.loss_is_sum { loss } else { loss * rows as f64 };
        let mut state = self.state();
        state.loss.add(total, rows);
        state.recent_loss.add(total, rows);
        Ok(())
    }

    /// Batches between two calls of `observe`; 0 for none.
    pub(crate) fn period(&self) -> u64 {
        match self.display {
            Display::Quiet => 0,
            Display::Lines { period } => period.max(1),
            Display::Bar(_) => 1,
        }
    }

    /// Shows the progress if it is time. Called on the first thread; the only fetched value is the AUC.
    pub(crate) fn observe(&self, observation: &Observation) {
        let times = observation.times;
        let mut state = self.state();
        let now = Instant::now();
        let began = now.checked_sub(observation.elapsed).unwrap_or(now);
        let since = state.shown.as_ref().map_or(began, |shown| shown.at);
        let due = match (&self.display, &state.shown) {
            (Display::Quiet, _) => return,
            (Display::Lines { period: 1.. }, _) => Duration::ZERO,
            (Display::Lines { .. }, Some(_)) => EVERY,
            (Display::Lines { .. }, None) => FIRST,
            (Display::Bar(_), _) => BAR_EVERY,
        };
        if now.duration_since(since) < due {
            return;
        }
        let (samples_before, times_before) =
            state.shown.as_ref().map_or((0, StepTimes::default()), |shown| (shown.samples, shown.times));
        let interval = now.duration_since(since).as_secs_f64().max(1e-9);
        let speed = (observation.samples - samples_before) as f64 / interval;
        if let Some(on_progress) = self.on_progress {
            on_progress(observation.samples, speed);
        }
        let mut parts = vec![format!("{} samples/s", rate(speed))];
        parts.extend(state.recent_loss.mean().map(|loss| format!("loss {loss:.4}")));
        parts.extend(observation.values.first().and_then(|auc| auc.scalar()).map(|auc| format!("auc {auc:.4}")));
        parts.extend(phases(&(times - times_before)));
        let fraction = observation.progress.fraction();
        let whole = fraction.map(|part| ((state.epoch - 1) as f64 + part) / self.epochs as f64);
        if let Some(whole) = whole.filter(|whole| *whole > 0.0) {
            let left = self.started.elapsed().as_secs_f64() * (1.0 - whole) / whole;
            parts.push(format!("{} to go", duration(Duration::from_secs_f64(left))));
        }
        if observation.progress.skipped_lines > 0 {
            parts.push(format!("{} lines skipped", count(observation.progress.skipped_lines)));
        }
        let line = parts.join(", ");
        match &self.display {
            Display::Bar(bar) => {
                bar.set_position((fraction.unwrap_or(0.0) * BAR_STEPS as f64) as u64);
                bar.set_prefix(format!("epoch {}/{}", state.epoch, self.epochs));
                bar.set_message(line);
            }
            _ => {
                let part = fraction.map(|part| format!(" {:.0} %", 100.0 * part)).unwrap_or_default();
                remark(&format!("epoch {}/{}{part}: {line}", state.epoch, self.epochs));
            }
        }
        state.recent_loss = Sum::default();
        state.shown = Some(Shown { at: now, samples: observation.samples, times });
    }

    /// Ends an epoch: prints its line and returns its mean loss per row.
    pub(crate) fn end_epoch(&self, report: &RunReport, auc: Option<f64>) -> Option<f64> {
        let state = self.state();
        let loss = state.loss.mean();
        let mut parts = vec![
            format!("{} samples in {}", count(report.samples), duration(report.elapsed)),
            format!("{} samples/s", rate(report.samples_per_second())),
        ];
        parts.extend(loss.map(|loss| format!("loss {loss:.4}")));
        parts.extend(auc.map(|auc| format!("auc {auc:.4}")));
        parts.extend(phases(&report.times));
        if report.skipped_lines > 0 {
            parts.push(format!("{} lines skipped", count(report.skipped_lines)));
        }
        self.print(&format!("epoch {}/{}: {}", state.epoch, self.epochs, parts.join(", ")));
        loss
    }

    /// Prints a line without breaking the bar.
    pub(crate) fn print(&self, line: &str) {
        match &self.display {
            Display::Quiet => {}
            Display::Lines { .. } => remark(line),
            Display::Bar(bar) => bar.suspend(|| remark(line)),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Display::Bar(bar) = &self.display {
            bar.finish_and_clear();
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // The sums are valid even if a thread panicked while it held the lock.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The phases of the training threads with their shares of the time: "data 2 %, compute 90 %, push 8 %". Phases below half a percent are left
/// out. `None` if no time was measured.
pub(crate) fn phases(times: &StepTimes) -> Option<String> {
    let shares = times.shares().into_iter().filter(|(_, share)| *share >= 0.005);
    let shares: Vec<String> = shares.map(|(name, share)| format!("{name} {:.0} %", 100.0 * share)).collect();
    (!shares.is_empty()).then(|| shares.join(", "))
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(BAR_STEPS);
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:24} {percent:>3} % {msg}") {
        bar.set_style(style);
    }
    bar
}

/// A dataset that counts what its readers have given.
pub(crate) struct Watched<'a> {
    inner: &'a dyn Dataset,
    rows: AtomicU64,
}

impl<'a> Watched<'a> {
    /// Wraps a dataset.
    pub(crate) fn new(inner: &'a dyn Dataset) -> Self {
        Watched { inner, rows: AtomicU64::new(0) }
    }

    /// Rows given by the readers that have ended, in the dataset's own unit.
    pub(crate) fn rows_done(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }
}

impl Dataset for Watched<'_> {
    fn schema(&self) -> &Schema {
        self.inner.schema()
    }

    fn batch_size(&self) -> usize {
        self.inner.batch_size()
    }

    fn thread_num(&self) -> usize {
        self.inner.thread_num()
    }

    fn rows(&self) -> Option<usize> {
        self.inner.rows()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn is_round_robin(&self) -> bool {
        self.inner.is_round_robin()
    }

    fn skip_pass(&self) {
        self.inner.skip_pass();
    }

    fn open(&self) -> DataResult<Box<dyn BatchReader + '_>> {
        Ok(Box::new(WatchedReader { inner: self.inner.open()?, watched: self }))
    }
}

struct WatchedReader<'a> {
    inner: Box<dyn BatchReader + 'a>,
    watched: &'a Watched<'a>,
}

impl BatchReader for WatchedReader<'_> {
    fn next(&self, batch: &mut Batch) -> DataResult<bool> {
        self.next_for(0, batch)
    }

    fn next_for(&self, stream: u32, batch: &mut Batch) -> DataResult<bool> {
        self.inner.next_for(stream, batch)
    }

    fn end(&self) {
        self.inner.end();
    }

    fn progress(&self) -> Progress {
        self.inner.progress()
    }
}

impl Drop for WatchedReader<'_> {
    fn drop(&mut self) {
        self.watched.rows.fetch_add(self.inner.progress().rows, Ordering::Relaxed);
    }
}
