//! The command line of `openfleet plan`, as the user wrote it. [`super::job::PlannedJob`] is the checked form.

use clap::Args;

use crate::cli::model_choice::{ModelKind, ModelSizes};
use crate::cli::optimizer_choice::Rule;

/// `openfleet plan ...`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Kind of model; its dense parameters and tables are those of the program that `train` builds.
    #[arg(long, value_enum, help_heading = "Model")]
    pub(super) model: Option<ModelKind>,
    #[command(flatten)]
    pub(super) sizes: ModelSizes,
    /// Without --model: floats in all dense parameters.
    #[arg(long, value_name = "FLOATS", conflicts_with = "model", help_heading = "Model")]
    pub(super) dense_parameters: Option<usize>,
    /// Slots of ids of a row of the data [26].
    #[arg(long, help_heading = "Model")]
    pub(super) slots: Option<usize>,
    /// Floats of a row of the data; 0 for none [13].
    #[arg(long, help_heading = "Model")]
    pub(super) dense: Option<usize>,
    /// Optimizer, whose state is part of every row [click models: adam; word2vec, fit_a_line, counter: sgd].
    #[arg(long, value_enum, help_heading = "Model")]
    pub(super) optimizer: Option<Rule>,
    /// Rows of each sparse table, on all servers together: the distinct ids of the data.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, help_heading = "Data")]
    pub(super) rows: u64,
    /// Batch size in rows of the data, per worker [click models: 512; word2vec: 256; fit_a_line: 20].
    #[arg(long, alias = "batch", value_name = "ROWS", help_heading = "Data")]
    pub(super) batch_size: Option<usize>,
    /// Distinct ids of a batch, which are pulled and pushed [39 % of its ids, as in the generated click data].
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub(super) keys: Option<usize>,
    /// Training mode: sync, half_async or async.
    #[arg(long, default_value = "async", help_heading = "Job")]
    pub(super) mode: String,
    /// Workers, with one training thread each.
    #[arg(long, alias = "workers", value_name = "N", default_value_t = 1, help_heading = "Job", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) worker_num: u32,
    /// Servers [as many as are needed].
    #[arg(long, alias = "servers", value_name = "N", help_heading = "Job", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) server_num: Option<u32>,
    /// Processor time of a worker for forward and backward of a batch, in milliseconds.
    #[arg(
        long,
        value_name = "MS",
        allow_negative_numbers = true,
        conflicts_with = "measure",
        help_heading = "Machines"
    )]
    pub(super) compute_ms: Option<f64>,
    /// Measure the processor time of a batch by training the model on generated rows for a moment, on this machine.
    #[arg(long, help_heading = "Machines")]
    pub(super) measure: bool,
    /// Time of a batch in which a worker waits for something else, such as its data, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0.0, help_heading = "Machines")]
    pub(super) wait_ms: f64,
    /// Cores of each machine [those of this machine].
    #[arg(long, value_name = "N", help_heading = "Machines", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) cores: Option<u32>,
    /// All processes share one machine and its cores. By default each worker and each server has its own machine.
    #[arg(long, help_heading = "Machines")]
    pub(super) one_machine: bool,
    /// Rate of the network of each machine, in each direction, in Gbit/s.
    #[arg(long, value_name = "RATE", default_value_t = 10.0, help_heading = "Machines")]
    pub(super) network_gbit: f64,
    /// Round-trip time between two machines in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0.2, help_heading = "Machines")]
    pub(super) round_trip_ms: f64,
    /// Memory of a server in GB, for its tables and everything else [no limit].
    #[arg(long, value_name = "GB", help_heading = "Machines")]
    pub(super) server_memory: Option<f64>,
    /// Take the costs of messages, rows and parameters from the documentation instead of measuring them here, which
    /// takes three seconds.
    #[arg(long, help_heading = "Machines")]
    pub(super) no_calibrate: bool,
    /// Print one JSON object.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}
