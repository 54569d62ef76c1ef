//! What a caller chooses for a run over a dataset, and what the run tells the caller.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use openfleet_core::Batch;
use openfleet_dist::Cluster;

use super::Plan;
use crate::dataset::Progress;
use crate::error::Result;
use crate::graph::{Program, Var};
use crate::memory::{Arena, Scope};
use crate::value::Tensor;

/// What `train_from_dataset` and `infer_from_dataset` should do beside training.
#[derive(Clone, Copy, Default)]
pub struct RunOptions<'a> {
    /// Training threads; 0 takes the dataset's.
    pub threads: usize,
    /// Variables to show.
    pub fetch: &'a [Var],
    /// What to call them, one text each; their names where it is shorter than the list.
    pub fetch_info: &'a [&'a str],
    /// Show them each time the first thread has done this many batches; 0 never.
    pub print_period: u64,
    /// Who looks at them.
    pub observer: Option<&'a (dyn Fn(&Observation) + Sync)>,
    /// Who looks at every batch, on the thread that ran it.
    pub each_batch: Option<&'a EachBatch<'a>>,
    /// Ends the run between two batches.
    pub stop: Option<&'a AtomicBool>,
    /// Measures each op.
    pub debug: bool,
    /// In one process: skips the batches that the checkpoint which was loaded last has learnt from. The dataset has to give its
    /// batches as it did before ([`RoundRobinDataset`]). With servers this needs no option: a restarted worker
    /// skips what they have applied.
    pub resume: bool,
    /// All threads pause each time every one of them has done this many batches more; 0 never.
    pub pause_every: u64,
    /// What is done in a pause.
    pub on_pause: Option<&'a OnPause<'a>>,
}

/// A function that is called while no thread of this worker trains.
pub type OnPause<'a> = dyn Fn(&Pause<'_>) -> Result<()> + Sync + 'a;

/// No thread of this worker trains: what it has done can be saved.
pub struct Pause<'a> {
    pub(crate) program: &'a Program,
    pub(crate) scope: &'a Scope,
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// Batches that each thread has done, over the life of what it trains.
    pub positions: Vec<u64>,
}

/// A function that is shown every batch.
pub type EachBatch<'a> = dyn Fn(&BatchView<'_>) -> Result<()> + Sync + 'a;

/// What an observer sees.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Batches done by the first thread.
    pub step: u64,
    /// The fetched values of its last batch.
    pub values: Vec<Tensor>,
    /// What to call them: the texts of `fetch_info`, or their names.
    pub info: Vec<String>,
    /// Rows done by all threads.
    pub samples: u64,
    /// Since the run began.
    pub elapsed: Duration,
    /// Time all threads together have waited for data, and for servers.
    pub waited: Duration,
    /// How far the reading is.
    pub progress: Progress,
}

/// A batch just run, for whoever wants more than fetched values now and then.
pub struct BatchView<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) arena: &'a Arena,
    /// The batch as it was fed.
    pub batch: &'a Batch,
}

impl BatchView<'_> {
    /// A copy of a variable's value.
    pub fn fetch(&self, var: Var) -> Result<Tensor> {
        self.plan.fetch(self.arena, self.batch, var)
    }
}

/// What a run over a dataset did.
#[derive(Debug, Clone, Default)]
pub struct RunReport {
    /// Rows.
    pub samples: u64,
    /// Batches.
    pub steps: u64,
    /// From the first read to the last push.
    pub elapsed: Duration,
    /// Time all threads together waited for data, and for servers.
    pub waited: Duration,
    /// Bad lines that were skipped.
    pub skipped_lines: u64,
    /// Gradients that were refused because they were not finite: a row of a sparse table, or a whole parameter.
    pub refused_gradients: u64,
    /// Whether `stop` ended it before the data did.
    pub stopped: bool,
    /// Whether the whole pass was skipped, because it was complete before this worker was restarted. `samples` and `steps`
    /// are those of the pass.
    pub skipped: bool,
    /// Batches that were skipped, because the servers had applied them before this worker was restarted.
    pub skipped_steps: u64,
    /// Rows of those batches.
    pub skipped_samples: u64,
    /// With `debug`: op and time of all threads, most first.
    pub profile: Vec<(String, Duration)>,
}

impl RunReport {
    /// Rows a second.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}
