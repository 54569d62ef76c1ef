//! `openfleet infer`: predicts with a saved model, and evaluates it if the rows have labels.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use clap::Args;
use openfleet_core::{Field, FieldKind, Schema};
use openfleet_engine::dataset::QueueDataset;
use serde::Serialize;

use super::Outcome;
use super::data_choice::{DataOptions, ReadOptions};
use super::model_choice::ModelKind;
use super::output::{count, remark, result};
use super::train::describe;
use crate::columns::{DataDescription, DataFormat};
use crate::error::{Error, Result};
use crate::evaluation::{Evaluation, Pass, Predictions, evaluate_saved};
use crate::files::expand;
use crate::model_dir::{self, SavedModel};

/// Default batch size.
const BATCH: usize = 512;

/// The note about a model whose training was interrupted.
pub(crate) const UNFINISHED: &str = "this model's training was interrupted";

/// `openfleet infer ...`.
#[derive(Debug, Args)]
pub(crate) struct InferArgs {
    /// Saved model: a directory or bucket that `train --save` or `save_inference_model` wrote.
    #[arg(value_name = "ADDRESS", required_unless_present = "model_dir")]
    model: Option<String>,
    /// Old spelling of ADDRESS.
    #[arg(long, value_name = "ADDRESS", hide = true, conflicts_with = "model")]
    model_dir: Option<String>,
    /// Files to predict: names or quoted patterns, separated by blanks or commas. They are read as in training.
    #[arg(long, required = true, num_args = 1.., value_name = "GLOB")]
    data: Vec<String>,
    /// Write one prediction per line, in the order of the rows; files are sorted by name.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The rows have no label: only predict. (Lines of criteo and libsvm files still begin with a label, which is ignored.)
    #[arg(long)]
    no_label: bool,
    #[command(flatten)]
    format: DataOptions,
    #[command(flatten)]
    reading: ReadOptions,
    /// Print the result as one line of JSON at the end.
    #[arg(long, help_heading = "Output")]
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
    let address = arguments.model.as_ref().or(arguments.model_dir.as_ref());
    let opened = model_dir::open(address.map_or("", String::as_str), "ADDRESS")?;
    if opened.description.as_ref().is_some_and(|description| !description.complete) {
        remark(UNFINISHED);
    }
    let data = description(arguments, &opened)?;
    let data = if arguments.no_label { data.without_label()? } else { data };
    let Some(config) = arguments.reading.config(&data, &files, arguments.reading.batch_size.unwrap_or(BATCH)) else {
        unreachable!("a model that predicts something reads rows")
    };
    // One thread and one reader keep predictions in the order of the rows.
    let threads = if arguments.out.is_some() { 1 } else { arguments.reading.threads() };
    let dataset = QueueDataset::new(config.thread_num(threads))?;
    let mut out = match &arguments.out {
        Some(path) => Some(BufWriter::new(std::fs::File::create(path).map_err(Error::io("create", path))?)),
        None => None,
    };
    let pass = Pass {
        threads,
        labelled: !arguments.no_label,
        stop,
        predictions: out.as_mut().zip(arguments.out.as_deref()).map(|(file, path)| Predictions { path, file }),
    };
    let evaluation = evaluate_saved(&opened.predictor, &dataset, pass)?;
    if let (Some(mut out), Some(path)) = (out, &arguments.out) {
        out.flush().map_err(Error::io("write", path))?;
    }
    print(arguments, opened.kind(), &evaluation);
    Ok(if evaluation.stopped { Outcome::Interrupted } else { Outcome::Done })
}

/// The format of the files: that of training, or of the options if the model does not record it. Without either, files are
/// MultiSlot text with the label first and then the fields that the model reads.
fn description(arguments: &InferArgs, opened: &SavedModel) -> Result<DataDescription> {
    match (&opened.description, arguments.format.first_given()) {
        (Some(description), None) => Ok(description.data.clone()),
        (Some(_), Some(option)) => Err(Error::MeaninglessOption {
            option,
            owner: "a model that records the format of its data".into(),
            takers: "models of `save_inference_model`",
        }),
        (None, Some(_)) => arguments.format.resolve(ModelKind::CtrDnn),
        (None, None) => {
            let label = Field::new("label", FieldKind::FixedIds { length: 1 });
            let program = &opened.predictor.model().program;
            let mut fields = vec![label];
            for name in opened.predictor.feeds() {
                fields.push(Field::new(name, program.variable(program.find(name)?).field_kind()));
            }
            let names = fields.iter().map(|field| field.name.clone()).collect();
            Ok(DataDescription { format: DataFormat::Multislot(names), schema: Schema::new(fields)? })
        }
    }
}

fn print(arguments: &InferArgs, model: &'static str, evaluation: &Evaluation) {
    if evaluation.stopped {
        remark("interrupted: the result covers only the first rows");
    }
    result(&format!("{model}: {}", describe(evaluation)));
    if evaluation.skipped_lines > 0 {
        remark(&format!("{} malformed lines skipped: they have no prediction", count(evaluation.skipped_lines)));
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
