//! The command line of `openfleet train`, as the user wrote it. [`super::job::Job`] is the checked form.

use std::path::PathBuf;

use clap::Args;

use crate::cli::cluster_choice::ClusterOptions;
use crate::cli::data_choice::{DataOptions, ReadOptions};
use crate::cli::model_choice::ModelOptions;
use crate::cli::optimizer_choice::OptimizerOptions;

/// `openfleet train ...`.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(super) model: ModelOptions,
    /// Training files: names or quoted patterns, separated by blanks or commas.
    #[arg(long, required = true, num_args = 1.., value_name = "GLOB", help_heading = "Data")]
    pub(super) train: Vec<String>,
    /// Test files: evaluate the trained model on them.
    #[arg(long, num_args = 1.., value_name = "GLOB", help_heading = "Data")]
    pub(super) test: Vec<String>,
    #[command(flatten)]
    pub(super) data: DataOptions,
    #[command(flatten)]
    pub(crate) reading: ReadOptions,
    /// Drop the last rows of an epoch if they do not fill a batch.
    #[arg(long, help_heading = "Reading")]
    pub(super) drop_last: bool,
    /// Load all training rows into memory and shuffle them before each epoch, instead of streaming the files.
    #[arg(long, help_heading = "Reading")]
    pub(super) in_memory: bool,
    /// word2vec: randomly drop words whose share of the text is above this; 0 drops none [0.0001].
    #[arg(long, value_name = "SHARE", help_heading = "Reading")]
    pub(super) subsample: Option<f64>,
    /// word2vec: ignore words that occur less often than this [5].
    #[arg(long, value_name = "N", help_heading = "Reading")]
    pub(super) min_count: Option<u64>,
    #[command(flatten)]
    pub(super) optimizer: OptimizerOptions,
    #[command(flatten)]
    pub(super) cluster: ClusterOptions,
    /// Passes over the training files.
    #[arg(long, alias = "epoch", default_value_t = 1, help_heading = "Training", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) epochs: u64,
    /// Random seed of initial values, shuffles and samples.
    #[arg(long, default_value_t = 1, help_heading = "Training")]
    pub(super) seed: u64,
    /// Save the trained model as a checkpoint in this directory or bucket, such as `s3://bucket/model`. In a job, every server
    /// must be able to write there.
    #[arg(long, value_name = "ADDRESS", help_heading = "Saving")]
    pub(super) save: Option<String>,
    /// Also save each time a thread of the first worker has trained this many batches (geo: at the end of each epoch).
    #[arg(long, value_name = "BATCHES", requires = "save", help_heading = "Saving", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) save_every: Option<u64>,
    /// Resume from the checkpoint that `--save` names, if there is one, after the last batch in it.
    #[arg(long, requires = "save", help_heading = "Saving")]
    pub(super) resume: bool,
    /// word2vec: write the word vectors to this file, in word2vec's text format.
    #[arg(long, value_name = "FILE", help_heading = "Saving")]
    pub(super) vectors: Option<PathBuf>,
    /// Print the result as one line of JSON at the end.
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
    /// Show no progress.
    #[arg(long, short, help_heading = "Output")]
    pub(super) quiet: bool,
    /// Print progress every BATCHES batches of the first thread, instead of by time.
    #[arg(long, value_name = "BATCHES", help_heading = "Output", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) print_period: Option<u64>,
    /// Print the time of each phase (data, pull, compute, push, barrier) and of each op after every epoch.
    #[arg(long, visible_alias = "debug", help_heading = "Output")]
    pub(super) profile: bool,
}
