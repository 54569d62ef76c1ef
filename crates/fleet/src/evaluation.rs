//! Evaluation of a model on data.
//!
//! One pass with the test copy of the program, or with a saved model. Click models are evaluated by AUC, log loss and accuracy,
//! regressions (whose label is a float) by squared and absolute error. The AUC is exact up to [`EXACT_ROWS`] rows, whose labels
//! and predictions are kept; beyond that, and over several workers, it is computed from 4,096 buckets.

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use openfleet_core::metrics::{Accuracy, Auc, AucCounter, LogLoss, Mae, Mse, Target, exact_auc, global_auc};
use openfleet_core::{Column, FieldKind};
use openfleet_engine::dataset::Dataset;
use openfleet_engine::{BatchView, Executor, Predictor, RunOptions, RunReport, Var};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::model::Network;

/// The most rows whose labels and predictions are kept for an exact AUC, at 8 bytes each.
pub(crate) const EXACT_ROWS: usize = 5_000_000;

/// The result of an evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Evaluation {
    /// Evaluated rows.
    pub rows: u64,
    /// Area under the curve; `None` for regressions.
    pub auc: Option<f64>,
    /// Mean cross entropy in nats; `None` for regressions.
    pub logloss: Option<f64>,
    /// Share of rows whose prediction is on the right side of 0.5; `None` for regressions.
    pub accuracy: Option<f64>,
    /// Mean squared error; `None` for click models.
    pub mse: Option<f64>,
    /// Mean absolute error; `None` for click models.
    pub mae: Option<f64>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Malformed lines that were skipped.
    pub skipped_lines: u64,
    /// Whether it was stopped before the end of the data.
    pub stopped: bool,
    /// Rows with and without a click per bucket of predicted probability, for the AUC over several workers; empty for
    /// regressions.
    #[serde(skip)]
    pub buckets: [Vec<i64>; 2],
}

/// The options of an evaluation.
pub(crate) struct Pass<'a> {
    /// Threads; 0 means the dataset's number.
    pub threads: usize,
    /// Whether the rows have labels; if not, only predictions are written.
    pub labelled: bool,
    /// Set to stop between two batches.
    pub stop: &'a AtomicBool,
    /// Writes one prediction per line, in the order of the rows if there is one thread.
    pub predictions: Option<Predictions<'a>>,
}

/// The file for predictions.
pub(crate) struct Predictions<'a> {
    /// The path, for errors.
    pub path: &'a Path,
    /// The file.
    pub file: &'a mut (dyn Write + Send),
}

/// Evaluates a network on a dataset. Sets its AUC counters to zero first; parameters do not change.
pub(crate) fn evaluate(
    executor: &mut Executor,
    network: &Network,
    dataset: &dyn Dataset,
    pass: Pass<'_>,
) -> Result<Evaluation> {
    let Some(prediction) = network.prediction else { return Ok(Evaluation::default()) };
    network.zero_auc(executor.scope())?;
    judge(prediction, dataset, pass, |options| executor.infer_from_dataset(&network.net.main, dataset, options))
}

/// Evaluates the first target of a saved model on a dataset. The dataset needs no `label` if the rows have none.
pub(crate) fn evaluate_saved(predictor: &Predictor, dataset: &dyn Dataset, pass: Pass<'_>) -> Result<Evaluation> {
    let Some(&prediction) = predictor.model().targets.first() else { return Ok(Evaluation::default()) };
    judge(prediction, dataset, pass, |options| predictor.infer_from_dataset(dataset, options))
}

fn judge(
    prediction: Var,
    dataset: &dyn Dataset,
    pass: Pass<'_>,
    run: impl FnOnce(&RunOptions<'_>) -> openfleet_engine::Result<RunReport>,
) -> Result<Evaluation> {
    let label = if pass.labelled { Some(dataset.schema().position("label")?) } else { None };
    let regression = label.is_some_and(|at| matches!(dataset.schema().fields()[at].kind, FieldKind::Floats { .. }));
    let collected = Mutex::new(Collected { predictions: pass.predictions, ..Collected::default() });
    let look = |view: &BatchView<'_>| -> openfleet_engine::Result<()> {
        let fetched = view.fetch(prediction)?;
        let values = fetched.f32s().unwrap_or_default();
        let width = (values.len() / view.batch.rows.max(1)).max(1);
        let last: Vec<f32> = values.iter().skip(width - 1).step_by(width).copied().collect();
        // A thread that panicked while it held the lock has ended the pass, so the values do not matter.
        let mut collected = collected.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        collected.write(&last);
        let Some(label) = label else { return Ok(()) };
        match &view.batch.columns[label] {
            Column::Ids { keys, .. } => collected.judge(regression, keys, &last),
            Column::Floats { values, .. } => collected.judge(regression, values, &last),
        }
    };
    let options =
        RunOptions { threads: pass.threads, each_batch: Some(&look), stop: Some(pass.stop), ..RunOptions::default() };
    let report = run(&options)?;
    let collected = collected.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(error) = collected.write_error {
        return Err(error);
    }
    // Without rows there are no figures.
    let labelled = pass.labelled && report.samples > 0;
    let clicks = labelled && !regression;
    let auc = match (clicks, report.samples as usize <= EXACT_ROWS) {
        (false, _) => None,
        (true, true) => Some(exact_auc(&collected.labels, &collected.scores)?),
        (true, false) => Some(collected.auc.global_value()),
    };
    let buckets = [AucCounter::StatPos, AucCounter::StatNeg].map(|counter| collected.auc.counts(counter).to_vec());
    Ok(Evaluation {
        rows: report.samples,
        auc,
        logloss: clicks.then(|| collected.logloss.value()),
        accuracy: clicks.then(|| collected.accuracy.value()),
        mse: (labelled && regression).then(|| collected.mse.value()),
        mae: (labelled && regression).then(|| collected.mae.value()),
        seconds: report.elapsed.as_secs_f64(),
        skipped_lines: report.skipped_lines,
        stopped: report.stopped,
        buckets: if clicks { buckets } else { Default::default() },
    })
}

impl Evaluation {
    /// The evaluation of all workers' rows. Every worker calls it with its own part, which may have no rows; `all_reduce` sums
    /// the values of all workers. The AUC is computed from the buckets.
    pub(crate) fn of_all_workers(
        &self,
        network: &Network,
        all_reduce: impl FnOnce(&mut [f64]) -> Result<()>,
    ) -> Result<Evaluation> {
        let rows = self.rows as f64;
        let total = |mean: Option<f64>| mean.map_or(0.0, |mean| mean * rows);
        let means = [self.logloss, self.accuracy, self.mse, self.mae].map(total);
        let counts = [rows, self.skipped_lines as f64, f64::from(u8::from(self.stopped))];
        let (clicks, regression) = (network.auc.is_some(), network.auc.is_none());
        let bucket_count = if clicks { Auc::NUM_THRESHOLDS + 1 } else { 0 };
        // A worker without rows has no buckets.
        let of_one =
            |counts: &Vec<i64>| (0..bucket_count).map(|at| counts.get(at).map_or(0.0, |&n| n as f64)).collect();
        let buckets: Vec<Vec<f64>> = self.buckets.iter().map(of_one).collect();
        let mut values: Vec<f64> = counts.into_iter().chain(means).chain(buckets.into_iter().flatten()).collect();
        all_reduce(&mut values)?;
        let (head, buckets) = values.split_at(7);
        let rows = head[0];
        let mean = |at: usize| (rows > 0.0).then(|| head[at] / rows);
        let buckets: Vec<i64> = buckets.iter().map(|&count| count as i64).collect();
        let (positive, negative) = buckets.split_at(bucket_count);
        Ok(Evaluation {
            rows: rows as u64,
            auc: (clicks && rows > 0.0).then(|| global_auc(positive, negative)),
            logloss: mean(3).filter(|_| clicks),
            accuracy: mean(4).filter(|_| clicks),
            mse: mean(5).filter(|_| regression),
            mae: mean(6).filter(|_| regression),
            seconds: self.seconds,
            skipped_lines: head[1] as u64,
            stopped: head[2] > 0.0,
            buckets: [positive.to_vec(), negative.to_vec()],
        })
    }
}

/// What the threads of a pass collect.
#[derive(Default)]
struct Collected<'a> {
    labels: Vec<f32>,
    scores: Vec<f32>,
    auc: Auc,
    logloss: LogLoss,
    accuracy: Accuracy,
    mse: Mse,
    mae: Mae,
    predictions: Option<Predictions<'a>>,
    write_error: Option<Error>,
}

impl Collected<'_> {
    fn judge<T: Target>(
        &mut self,
        regression: bool,
        labels: &[T],
        predictions: &[f32],
    ) -> openfleet_engine::Result<()> {
        if regression {
            self.mse.update(labels, predictions)?;
            self.mae.update(labels, predictions)?;
            return Ok(());
        }
        self.logloss.update(labels, predictions)?;
        self.accuracy.update_binary(labels, predictions)?;
        self.auc.update(labels, predictions)?;
        if self.labels.len() < EXACT_ROWS {
            self.labels.extend(labels.iter().map(|label| label.as_f64() as f32));
            self.scores.extend_from_slice(predictions);
        }
        Ok(())
    }

    fn write(&mut self, values: &[f32]) {
        let Some(Predictions { path, file }) = &mut self.predictions else { return };
        let written = values.iter().try_for_each(|value| writeln!(file, "{value}"));
        if let Err(error) = written.map_err(Error::io("write", path)) {
            self.write_error = Some(error);
            self.predictions = None;
        }
    }
}
