//! What training did: added up over epochs and workers, then shown as text and as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use openfleet_dist::Reduce;
use openfleet_engine::{Minimize, RunReport, Scope, StepTimes};
use serde::Serialize;

use super::data::TrainingData;
use super::job::Job;
use crate::cli::deployment::Deployment;
use crate::cli::output::{bytes, count, duration, rate, result};
use crate::error::Result;
use crate::evaluation::Evaluation;
use crate::model::{Network, table_names};

/// The totals of all epochs.
#[derive(Default)]
pub(super) struct TrainingReport {
    pub(super) epochs: u64,
    pub(super) samples: u64,
    /// Rows skipped because they were trained before this process started.
    pub(super) skipped_samples: u64,
    pub(super) elapsed: Duration,
    /// The time of all threads, by what they did.
    pub(super) times: StepTimes,
    pub(super) words: u64,
    pub(super) refused_gradients: u64,
    pub(super) skipped_lines: u64,
    pub(super) loss: Option<f64>,
    pub(super) auc: Option<f64>,
    pub(super) interrupted: bool,
}

impl TrainingReport {
    pub(super) fn add(&mut self, report: &RunReport, rows_done: u64) {
        self.epochs += 1;
        match report.skipped {
            true => self.skipped_samples += report.samples,
            false => {
                self.samples += report.samples;
                self.skipped_samples += report.skipped_samples;
            }
        }
        self.elapsed += report.elapsed;
        self.times += report.times;
        self.words += rows_done;
        // Every epoch reads the same bad lines.
        self.skipped_lines = self.skipped_lines.max(report.skipped_lines);
        self.refused_gradients += report.refused_gradients;
    }

    /// In a job: adds the totals of the other worker processes. Returns the samples per second of every worker, by rank.
    pub(super) fn of_all_workers(&mut self, deployment: &Deployment) -> Result<Option<Vec<f64>>> {
        if !matches!(deployment, Deployment::Job(_)) {
            return Ok(None);
        }
        let elapsed = self.elapsed.as_secs_f64();
        let mut rates = vec![0.0; deployment.worker_count()];
        rates[deployment.ranks().start] = self.samples as f64 / elapsed.max(1e-9);
        let StepTimes { data, pull, compute, push, barrier, waited } = self.times;
        let mut times = [data, pull, compute, push, barrier, waited].map(|time| time.as_secs_f64());
        let mut sums = [
            self.samples as f64,
            self.words as f64,
            self.skipped_lines as f64,
            self.refused_gradients as f64,
            f64::from(u8::from(self.interrupted)),
            self.skipped_samples as f64,
        ];
        let mut longest = [elapsed];
        deployment.all_reduce(Reduce::Sum, &mut rates)?;
        deployment.all_reduce(Reduce::Sum, &mut sums)?;
        deployment.all_reduce(Reduce::Sum, &mut times)?;
        deployment.all_reduce(Reduce::Max, &mut longest)?;
        let [samples, words, skipped_lines, refused_gradients, interrupted, skipped_samples] = sums;
        self.samples = samples as u64;
        self.skipped_samples = skipped_samples as u64;
        let [data, pull, compute, push, barrier, waited] = times.map(Duration::from_secs_f64);
        self.times = StepTimes { data, pull, compute, push, barrier, waited };
        self.words = words as u64;
        self.skipped_lines = skipped_lines as u64;
        self.refused_gradients = refused_gradients as u64;
        self.interrupted = interrupted > 0.0;
        self.elapsed = Duration::from_secs_f64(longest[0]);
        Ok(Some(rates))
    }

    /// Adds the totals of another worker of this process, which trained at the same time.
    pub(super) fn join(&mut self, other: TrainingReport) {
        self.samples += other.samples;
        self.skipped_samples += other.skipped_samples;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.times += other.times;
        self.words += other.words;
        self.skipped_lines += other.skipped_lines;
        self.refused_gradients += other.refused_gradients;
        self.interrupted |= other.interrupted;
    }
}

/// The last line of `train --json`.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Summary {
    pub(super) model: &'static str,
    pub(super) optimizer: &'static str,
    /// Epochs started.
    pub(super) epochs: u64,
    pub(super) threads: usize,
    pub(super) batch: usize,
    /// Rows trained on, in all epochs.
    pub(super) samples: u64,
    /// Rows skipped because the checkpoint or, after a restart, the servers already include them.
    pub(super) skipped_samples: u64,
    /// Training time, without loading, testing and saving.
    pub(super) seconds: f64,
    pub(super) samples_per_second: f64,
    /// Share of the threads' time spent waiting for data, servers and other workers, 0 to 1.
    pub(super) waiting_share: f64,
    /// Share of each phase of a step in the threads' time, 0 to 1.
    pub(super) phase_shares: BTreeMap<&'static str, f64>,
    /// Mean loss per row of the last epoch.
    pub(super) train_loss: Option<f64>,
    /// Training AUC of the last epoch.
    pub(super) train_auc: Option<f64>,
    pub(super) test_rows: Option<u64>,
    pub(super) test_auc: Option<f64>,
    pub(super) test_logloss: Option<f64>,
    pub(super) test_accuracy: Option<f64>,
    pub(super) test_mse: Option<f64>,
    pub(super) test_mae: Option<f64>,
    pub(super) test_seconds: Option<f64>,
    pub(super) load_seconds: Option<f64>,
    pub(super) parameters: usize,
    pub(super) rows_in_tables: usize,
    /// Malformed lines skipped in one pass over the training files.
    pub(super) skipped_lines: u64,
    pub(super) test_skipped_lines: u64,
    /// Gradients that were not finite and were not applied.
    pub(super) refused_gradients: u64,
    /// word2vec only: words of the text read in all epochs; `vocabulary` is the number of distinct words kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) words: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) words_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vocabulary: Option<usize>,
    pub(super) peak_rss_bytes: Option<u64>,
    /// In a job: one value per worker, by rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) worker_samples_per_second: Option<Vec<f64>>,
    /// With servers: payload bytes of all workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_sent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes_received: Option<u64>,
    pub(super) interrupted: bool,
}

impl Summary {
    /// The summary of this process; what other processes and servers know is added by the caller.
    pub(super) fn new(
        job: &Job<'_>,
        network: &Network,
        minimize: &Minimize,
        (data, scope): (&TrainingData, &Scope),
        trained: &TrainingReport,
        evaluation: Option<&Evaluation>,
    ) -> Summary {
        let seconds = trained.elapsed.as_secs_f64();
        let tables = table_names(&network.net.main);
        let words = data.vocabulary().map(|_| trained.words);
        Summary {
            model: job.shape.name(),
            optimizer: minimize.optimizer.name(),
            epochs: trained.epochs,
            threads: job.threads,
            batch: job.batch,
            samples: trained.samples,
            skipped_samples: trained.skipped_samples,
            seconds,
            samples_per_second: trained.samples as f64 / seconds.max(1e-9),
            waiting_share: trained.times.waited.as_secs_f64() / trained.times.total().as_secs_f64().max(1e-9),
            phase_shares: trained.times.shares().into_iter().collect(),
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
            vocabulary: data.vocabulary().map(<[String]>::len),
            peak_rss_bytes: peak_rss_bytes(),
            ..Summary::default()
        }
    }

    /// Prints the result for people.
    pub(super) fn print(&self, evaluation: Option<&Evaluation>) {
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

/// The figures of an evaluation as text.
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

/// The peak memory of this process; `None` if the operating system does not tell.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
