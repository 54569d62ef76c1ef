//! The job to plan: the tables and batches of a model, or of numbers that the user gives.

use openfleet_core::strategy::{Mode, Strategy, StrategyOptions};
use openfleet_core::{Field, FieldKind, Schema};
use openfleet_engine::Minimize;
use openfleet_table::sparse::DEFAULT_SHARDS;
use openfleet_table::{Accessor, Admission, DenseSpec, Initializer, NonFinite, Optimizer, Schedule, SparseSpec};

use super::args::PlanArgs;
use crate::cli::model_choice::ModelKind;
use crate::cli::optimizer_choice::Rule;
use crate::columns::{CRITEO_DENSE, CRITEO_SLOTS, DataDescription};
use crate::error::{Error, Result};
use crate::load::{Load, LoadStage};
use crate::model::{ModelShape, Network, Salt};

/// Share of the ids of a batch that are distinct: 512 rows of the generated click data (`openfleet gen criteo`).
const DISTINCT_SHARE: f64 = 0.39;
/// Floats per row, if neither a model nor `--dim` says it.
const DEFAULT_DIM: usize = 10;
/// The learning rate has no effect on any cost.
const LEARNING_RATE: f64 = 1e-3;

/// The job, checked.
pub(super) struct PlannedJob {
    /// One line that describes it.
    pub(super) description: String,
    /// Tables and batches.
    pub(super) load: Load,
    /// Rows of the data per batch and worker.
    pub(super) batch_size: usize,
    /// Mode and its settings.
    pub(super) strategy: Strategy,
    /// The network, with the fields of its data; `None` if the user gave numbers.
    pub(super) network: Option<(Network, Schema)>,
}

impl PlannedJob {
    /// Checks the options that describe the job.
    pub(super) fn resolve(arguments: &PlanArgs) -> Result<Self> {
        let strategy = strategy(&arguments.mode)?;
        let batch_size = arguments.batch_size.unwrap_or(match arguments.model {
            Some(ModelKind::Word2vec) => 256,
            Some(ModelKind::FitALine) => 20,
            _ => 512,
        });
        for (option, number) in [("--rows", arguments.rows), ("--batch-size", batch_size as u64)] {
            if number == 0 {
                return Err(Error::BadOption { option, expected: "a number above 0", got: number.to_string() });
            }
        }
        match arguments.model {
            Some(kind) => Self::of_model(arguments, kind, batch_size, strategy),
            None => Self::of_numbers(arguments, batch_size, strategy),
        }
    }

    fn of_model(arguments: &PlanArgs, kind: ModelKind, batch_size: usize, strategy: Strategy) -> Result<Self> {
        let shape = arguments.sizes.resolve(kind)?;
        let schema = schema(arguments, kind)?;
        let mut network = shape.build(&schema, 1, Some(Salt::SlotName), arguments.sizes.storage())?;
        let optimizer = arguments.optimizer.unwrap_or(Rule::default_for(kind)).optimizer();
        Minimize::new(optimizer, LEARNING_RATE).minimize(&mut network.net.main, network.loss)?;
        let program = &network.net.main;
        let (sparse, dense) = (program.sparse_specs(), program.dense_specs());
        let slots = arguments.slots.unwrap_or(CRITEO_SLOTS);
        let ids = match shape {
            // On average a centre word has a window of half the largest size, on both sides.
            ModelShape::Word2vec { window, negatives, .. } => vec![window + 1, 1 + negatives],
            ModelShape::FitALine => Vec::new(),
            _ => vec![slots],
        };
        // The tables of a click model share their keys. Word2Vec looks up different words in its two.
        let tables = |stage: usize| match kind {
            ModelKind::Word2vec => vec![stage],
            _ => (0..sparse.len()).collect(),
        };
        let stages = stages(arguments, batch_size, &ids, tables);
        let description = format!("{} ({shape}), {}", shape.name(), optimizer.name());
        let load = Load { sparse, dense, stages, rows: arguments.rows };
        Ok(PlannedJob { description, load, batch_size, strategy, network: Some((network, schema)) })
    }

    fn of_numbers(arguments: &PlanArgs, batch_size: usize, strategy: Strategy) -> Result<Self> {
        let Some(parameters) = arguments.dense_parameters else {
            return Err(Error::MissingOption {
                option: "--model",
                owner: "`openfleet plan`".into(),
                remedy: "name a model, or give numbers: `--dense-parameters`, `--slots` and `--dim`",
            });
        };
        if let Some(option) = arguments.sizes.first_of_models().or(arguments.dense.map(|_| "--dense")) {
            let owner = "`--dense-parameters`".to_owned();
            return Err(Error::MeaninglessOption { option, owner, takers: "a `--model`" });
        }
        let dim = arguments.sizes.dim.unwrap_or(DEFAULT_DIM);
        let slots = arguments.slots.unwrap_or(CRITEO_SLOTS);
        let optimizer = arguments.optimizer.unwrap_or(Rule::Adam).optimizer();
        let sparse = if slots > 0 {
            vec![("rows".to_owned(), SparseSpec { storage: arguments.sizes.storage(), ..sparse_spec(dim, optimizer) })]
        } else {
            Vec::new()
        };
        if let Some((_, spec)) = sparse.first() {
            // The table knows which sizes it can have.
            openfleet_table::SparseTable::new(spec.clone())?;
        }
        let dense = (parameters > 0).then(|| ("parameters".to_owned(), dense_spec(parameters, optimizer.for_dense())));
        let ids = if slots > 0 { vec![slots] } else { Vec::new() };
        let stages = stages(arguments, batch_size, &ids, |stage| vec![stage]);
        let load = Load { sparse, dense: dense.into_iter().collect(), stages, rows: arguments.rows };
        let description = format!("{slots} slots, dim {dim}, {}", optimizer.name());
        Ok(PlannedJob { description, load, batch_size, strategy, network: None })
    }

    /// Floats in all dense parameters.
    pub(super) fn dense_parameters(&self) -> usize {
        self.load.dense.iter().map(|(_, spec)| spec.shape.iter().product::<usize>()).sum()
    }

    /// Distinct keys of a batch, in all stages.
    pub(super) fn keys(&self) -> usize {
        self.load.stages.iter().map(|stage| stage.keys).sum()
    }
}

fn strategy(mode: &str) -> Result<Strategy> {
    let expected = "sync, half_async or async";
    match Mode::parse(mode) {
        Ok(mode @ (Mode::Sync | Mode::HalfAsync | Mode::Async)) => {
            let mut options = StrategyOptions::for_mode(mode);
            if mode == Mode::Async {
                // On slow links async merges gradients, which the arithmetic does not know. The calibration must not do it.
                options.max_merge_var_num = Some(1);
            }
            Ok(Strategy::resolve(&options)?)
        }
        _ => Err(Error::BadOption { option: "--mode", expected, got: mode.to_owned() }),
    }
}

/// The fields of the data that a model reads.
fn schema(arguments: &PlanArgs, kind: ModelKind) -> Result<Schema> {
    let only = |given: bool, option, takers| match given {
        true => Err(Error::MeaninglessOption { option, owner: kind.name().into(), takers }),
        false => Ok(()),
    };
    let dense = arguments.dense.unwrap_or(CRITEO_DENSE);
    match kind {
        ModelKind::Word2vec => {
            only(arguments.slots.is_some(), "--slots", "models of rows")?;
            only(arguments.dense.is_some(), "--dense", "models of rows")?;
            Ok(Schema::new(Vec::new())?)
        }
        ModelKind::FitALine => {
            only(arguments.slots.is_some(), "--slots", "models with embeddings")?;
            let float = |name: &str, dim| Field::new(name, FieldKind::Floats { dim });
            Ok(Schema::new(vec![float("label", 1), float("dense", dense)])?)
        }
        _ => Ok(DataDescription::multislot(dense, arguments.slots.unwrap_or(CRITEO_SLOTS))?.schema),
    }
}

/// The distinct keys of a batch: `--keys` in proportion to the ids of each stage, or the usual share of its ids.
fn stages(
    arguments: &PlanArgs,
    batch_size: usize,
    ids: &[usize],
    tables: impl Fn(usize) -> Vec<usize>,
) -> Vec<LoadStage> {
    let all: usize = ids.iter().sum();
    let stage = |(stage, &ids): (usize, &usize)| {
        let wanted = match arguments.keys {
            Some(keys) => keys as f64 * ids as f64 / all as f64,
            None => batch_size as f64 * ids as f64 * DISTINCT_SHARE,
        };
        let keys = (wanted.round() as usize).clamp(1, usize::try_from(arguments.rows).unwrap_or(usize::MAX));
        LoadStage { keys, tables: tables(stage) }
    };
    ids.iter().enumerate().map(stage).collect()
}

fn sparse_spec(dim: usize, optimizer: Optimizer) -> SparseSpec {
    SparseSpec {
        dim,
        optimizer,
        schedule: Schedule::Constant(LEARNING_RATE),
        regularizer: None,
        initializer: Initializer::Uniform { low: -0.01, high: 0.01 },
        seed: 1,
        shards: DEFAULT_SHARDS,
        accessor: Accessor::Plain,
        admission: Admission::All,
        capacity: None,
        non_finite: NonFinite::Skip,
        salted: false,
        storage: Default::default(),
    }
}

fn dense_spec(parameters: usize, optimizer: Optimizer) -> DenseSpec {
    DenseSpec {
        shape: vec![parameters],
        optimizer,
        schedule: Schedule::Constant(LEARNING_RATE),
        regularizer: None,
        non_finite: NonFinite::Skip,
    }
}
