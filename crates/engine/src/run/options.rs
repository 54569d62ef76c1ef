//! The options of a run over a dataset, and what the run reports.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use openfleet_core::Batch;
use openfleet_dist::Cluster;

use super::Plan;
use crate::dataset::Progress;
use crate::error::Result;
use crate::graph::{Program, Var};
use crate::memory::{Arena, Scope, StepTimes};
use crate::value::Tensor;

/// Options of `train_from_dataset` and `infer_from_dataset`.
#[derive(Clone, Copy, Default)]
pub struct RunOptions<'a> {
    /// Training threads; 0 means as many as the dataset says.
    pub threads: usize,
    /// Variables that the observer is shown.
    pub fetch: &'a [Var],
    /// Labels for them, in order. A variable without a label is shown by its name.
    pub fetch_info: &'a [&'a str],
    /// Call the observer every time the first thread has done this many batches; 0 means never.
    pub print_period: u64,
    /// Called with the fetched values, on the first thread.
    pub observer: Option<&'a (dyn Fn(&Observation) + Sync)>,
    /// Called with every batch, on the thread that ran it.
    pub each_batch: Option<&'a EachBatch<'a>>,
    /// When set to `true`, ends the run between two batches.
    pub stop: Option<&'a AtomicBool>,
    /// Measure the time of each op.
    pub debug: bool,
    /// In one process: skip the batches that were trained before the checkpoint that was loaded last. The dataset must return the
    /// same batches in the same order ([`RoundRobinDataset`](crate::dataset::RoundRobinDataset)). With servers this option is not
    /// needed: a restarted worker skips what the servers have applied.
    pub resume: bool,
    /// Pause all threads every time each of them has done this many more batches; 0 means never.
    pub pause_every: u64,
    /// Called during a pause.
    pub on_pause: Option<&'a OnPause<'a>>,
}

/// A function that is called while no thread of this worker trains.
pub type OnPause<'a> = dyn Fn(&Pause<'_>) -> Result<()> + Sync + 'a;

/// A moment when no thread of this worker trains, so that its work can be saved.
pub struct Pause<'a> {
    pub(crate) program: &'a Program,
    pub(crate) scope: &'a Scope,
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// Batches that each thread, or each rank of a collective job, has done, counted since the model was first trained.
    pub positions: Vec<u64>,
    /// Rank and number of the ranks of a collective job.
    pub(crate) ranks: Option<(usize, usize)>,
}

impl Pause<'_> {
    /// The program that is trained.
    pub fn program(&self) -> &Program {
        self.program
    }
}

/// A function that is called with every batch.
pub type EachBatch<'a> = dyn Fn(&BatchView<'_>) -> Result<()> + Sync + 'a;

/// What the observer is called with.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Batches done by the first thread in this run.
    pub step: u64,
    /// The fetched values of its last batch.
    pub values: Vec<Tensor>,
    /// Their labels: the texts of `fetch_info`, or the variables' names.
    pub info: Vec<String>,
    /// Rows done by all threads in this run.
    pub samples: u64,
    /// Time since the run began.
    pub elapsed: Duration,
    /// The time of all threads together, by what they did.
    pub times: StepTimes,
    /// How much of the data is read.
    pub progress: Progress,
}

/// A batch that was just run.
pub struct BatchView<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) arena: &'a Arena,
    /// The batch as fed.
    pub batch: &'a Batch,
}

impl BatchView<'_> {
    /// A copy of a variable's value.
    pub fn fetch(&self, var: Var) -> Result<Tensor> {
        self.plan.fetch(self.arena, self.batch, var)
    }
}

/// The result of a run over a dataset.
#[derive(Debug, Clone, Default)]
pub struct RunReport {
    /// Rows done.
    pub samples: u64,
    /// Batches done.
    pub steps: u64,
    /// Time from the first read to the last push.
    pub elapsed: Duration,
    /// The time of all threads together, by what they did.
    pub times: StepTimes,
    /// Bad lines that were skipped.
    pub skipped_lines: u64,
    /// Gradients that were refused because they were not finite. A row of a sparse table counts as one, and so does a whole
    /// parameter.
    pub refused_gradients: u64,
    /// Whether `stop` ended the run before the data ended.
    pub stopped: bool,
    /// Whether the whole pass was skipped because it was complete before this worker was restarted. `samples` and `steps` are
    /// then those of the complete pass.
    pub skipped: bool,
    /// Batches that were skipped because the servers had applied them before this worker was restarted.
    pub skipped_steps: u64,
    /// Rows of those batches.
    pub skipped_samples: u64,
    /// With `debug`: ops and their time over all threads, slowest first.
    pub profile: Vec<(String, Duration)>,
}

impl RunReport {
    /// Rows per second.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}
