//! `openfleet infer`: predictions, and how good they are, of a saved model.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use clap::Args;
use openfleet_core::FieldKind;
use openfleet_engine::dataset::{Dataset, QueueDataset};
use serde::Serialize;

use super::Outcome;
use super::data_choice::ReadOptions;
use super::output::{count, remark, result};
use super::train::describe;
use crate::columns::DataDescription;
use crate::error::{Error, Result};
use crate::evaluation::{Evaluation, Pass, Predictions, evaluate};
use crate::files::expand;
use crate::model_dir;
use crate::unlabelled::Unlabelled;

/// `openfleet infer ...`.
#[derive(Debug, Args)]
pub(crate) struct InferArgs {
    /// The directory or address that `train --save` wrote to.
    #[arg(long, value_name = "ADDRESS")]
    model_dir: String,
    /// Files to predict: names or quoted patterns, several with blanks or commas between them; read as in training.
    #[arg(long, required = true, num_args = 1.., value_name = "GLOB")]
    data: Vec<String>,
    /// Write one prediction a line, in the order of the rows; files go in order of their names.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The rows have no label: predict only. (criteo and libsvm lines still have its place, whatever stands there.)
    #[arg(long)]
    no_label: bool,
    #[command(flatten)]
    reading: ReadOptions,
    /// End with one JSON object on a line.
    #[arg(long)]
    json: bool,
}

/// The last line of `infer --json`.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    model: &'static str,
    rows: u64,
    seconds: f64,
    samples_per_second: f64,
    auc: Option<f64>,
    logloss: Option<f64>,
    accuracy: Option<f64>,
    mse: Option<f64>,
    mae: Option<f64>,
    skipped_lines: u64,
    predictions: Option<&'a PathBuf>,
    interrupted: bool,
}

pub(crate) fn run(arguments: &InferArgs, stop: &AtomicBool) -> Result<Outcome> {
    let files = expand(&arguments.data)?;
    let mut loaded = model_dir::load(&arguments.model_dir)?;
    let model = loaded.description.model.name();
    if loaded.network.prediction.is_none() {
        return Err(Error::BadOption {
            option: "--model-dir",
            expected: "a model that predicts something of a row",
            got: format!("{model} in {}", arguments.model_dir),
        });
    }
    if !loaded.description.complete {
        remark("this model's training was interrupted");
    }
    let label = loaded.description.data.schema.position("label").ok();
    let label = label.map(|at| loaded.description.data.schema.fields()[at].kind);
    let data = loaded.description.data.clone();
    let dataset = open(arguments, if arguments.no_label { data.without_label()? } else { data }, &files, label)?;
    let mut out = match &arguments.out {
        Some(path) => Some(BufWriter::new(std::fs::File::create(path).map_err(Error::io("create", path))?)),
        None => None,
    };
    let pass = Pass {
        // With one thread, and one reader, predictions come in the order of the rows.
        threads: dataset.thread_num(),
        labelled: !arguments.no_label,
        stop,
        predictions: out.as_mut().zip(arguments.out.as_deref()).map(|(file, path)| Predictions { path, file }),
    };
    let evaluation = evaluate(&mut loaded.executor, &loaded.network, dataset.as_ref(), pass)?;
    if let (Some(mut out), Some(path)) = (out, &arguments.out) {
        out.flush().map_err(Error::io("write", path))?;
    }
    tell(arguments, model, &evaluation);
    Ok(if evaluation.stopped { Outcome::Interrupted } else { Outcome::Done })
}

fn open(
    arguments: &InferArgs,
    data: DataDescription,
    files: &[PathBuf],
    label: Option<FieldKind>,
) -> Result<Box<dyn Dataset>> {
    const BATCH: usize = 512;
    let Some(config) = arguments.reading.config(&data, files, arguments.reading.batch.unwrap_or(BATCH)) else {
        unreachable!("a model that predicts something reads rows")
    };
    let threads = if arguments.out.is_some() { 1 } else { arguments.reading.threads() };
    let dataset = QueueDataset::new(config.thread_num(threads))?;
    Ok(match (arguments.no_label, label) {
        (true, Some(label)) => Box::new(Unlabelled::new(dataset, label)?),
        _ => Box::new(dataset),
    })
}

fn tell(arguments: &InferArgs, model: &'static str, evaluation: &Evaluation) {
    if evaluation.stopped {
        remark("interrupted: only the first rows are covered");
    }
    result(&format!("{model}: {}", describe(evaluation)));
    if evaluation.skipped_lines > 0 {
        remark(&format!("{} bad lines skipped: they have no prediction", count(evaluation.skipped_lines)));
    }
    if arguments.json {
        let summary = Summary {
            model,
            rows: evaluation.rows,
            seconds: evaluation.seconds,
            samples_per_second: evaluation.rows as f64 / evaluation.seconds.max(1e-9),
            auc: evaluation.auc,
            logloss: evaluation.logloss,
            accuracy: evaluation.accuracy,
            mse: evaluation.mse,
            mae: evaluation.mae,
            skipped_lines: evaluation.skipped_lines,
            predictions: arguments.out.as_ref(),
            interrupted: evaluation.stopped,
        };
        result(&serde_json::to_string(&summary).unwrap_or_default());
    }
}
