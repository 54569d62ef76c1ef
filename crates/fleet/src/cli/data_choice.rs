//! The options for the format of the data and for reading it, and what they resolve to.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use openfleet_core::{Field, FieldKind, Schema};
use openfleet_engine::dataset::{Criteo, DatasetConfig, LibSvm, OnBadLine};

use super::model_choice::ModelKind;
use crate::columns::{CRITEO_DENSE, CRITEO_SLOTS, DataDescription, DataFormat};
use crate::error::{Error, Result};

/// The format of the files.
#[derive(Debug, Args)]
#[command(next_help_heading = "Data")]
pub(crate) struct DataOptions {
    /// Format of the files [click models: multislot; word2vec: text; fit_a_line: csv]. Files may be gzip or zstd.
    #[arg(long, value_enum)]
    format: Option<FormatName>,
    /// Column description: required for csv and parquet, optional for libsvm, criteo and multislot.
    #[arg(long, value_name = "FILE.toml")]
    columns: Option<PathBuf>,
    /// Number of slots of multislot files, named C1, C2, ... [26].
    #[arg(long)]
    slots: Option<usize>,
    /// Number of floats of multislot files, between the label and the slots; 0 for none [13].
    #[arg(long)]
    dense: Option<usize>,
    /// Take the ids of criteo files modulo this number [the 64-bit hash as it is].
    #[arg(long)]
    ids: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatName {
    /// For each slot a count and then that many values.
    Multislot,
    /// Label, 13 numbers and 26 categories, separated by tabs.
    Criteo,
    /// Cells separated by commas or another character.
    Csv,
    /// A label, then index:value pairs.
    Libsvm,
    /// Columns of Parquet files, or of Arrow IPC files and streams.
    Parquet,
    /// Words separated by blanks, for word2vec.
    Text,
}

/// How files of any format are read.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reading")]
pub(crate) struct ReadOptions {
    /// Batch size in rows; the threads of a click model share a batch [click models: 512; word2vec: 256; fit_a_line: 20].
    #[arg(long, alias = "batch", value_name = "ROWS")]
    pub(crate) batch_size: Option<usize>,
    /// Training threads; 0 means one per core, or in a job the value of CPU_NUM [1 if unset].
    #[arg(long, alias = "thread-num", default_value_t = 0, value_parser = threads)]
    threads: usize,
    /// Skip malformed lines and count them instead of stopping.
    #[arg(long)]
    pub(crate) skip_bad_lines: bool,
    /// Shell command that reads a file on standard input and writes the lines to parse.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) pipe_command: Option<String>,
}

impl DataOptions {
    /// The first of these options that was given, if any was.
    pub(crate) fn first_given(&self) -> Option<&'static str> {
        let given = [
            (self.format.is_some(), "--format"),
            (self.columns.is_some(), "--columns"),
            (self.slots.is_some(), "--slots"),
            (self.dense.is_some(), "--dense"),
            (self.ids.is_some(), "--ids"),
        ];
        given.into_iter().find_map(|(given, option)| given.then_some(option))
    }

    /// The format with its fields. Fails for an option that the format does not have.
    pub(crate) fn resolve(&self, model: ModelKind) -> Result<DataDescription> {
        let format = self.format.unwrap_or(match model {
            ModelKind::Word2vec => FormatName::Text,
            ModelKind::FitALine => FormatName::Csv,
            _ => FormatName::Multislot,
        });
        self.check(model, format)?;
        match (format, &self.columns) {
            (FormatName::Multislot, Some(path)) => DataDescription::multislot_of(path),
            (FormatName::Multislot, None) => {
                let (dense, slots) = (self.dense.unwrap_or(CRITEO_DENSE), self.slots.unwrap_or(CRITEO_SLOTS));
                DataDescription::multislot(dense, slots)
            }
            (FormatName::Criteo, columns) => {
                let mut description = match columns {
                    Some(path) => DataDescription::criteo_of(path)?,
                    None => DataDescription::criteo(Criteo::default()),
                };
                if let DataFormat::Criteo(options) = &mut description.format {
                    options.buckets = self.ids.or(options.buckets);
                }
                Ok(description)
            }
            (FormatName::Csv, Some(path)) => DataDescription::csv_of(path),
            (FormatName::Parquet, Some(path)) => DataDescription::parquet_of(path),
            (FormatName::Csv | FormatName::Parquet, None) => Err(Error::MissingOption {
                option: "--columns",
                owner: owner(format).into(),
                remedy: "describe the label, dense and categorical columns in a TOML file, as in examples/adult.toml",
            }),
            (FormatName::Libsvm, Some(path)) => DataDescription::libsvm_of(path),
            (FormatName::Libsvm, None) => {
                DataDescription::libsvm(LibSvm { regression: model == ModelKind::FitALine, ..LibSvm::default() })
            }
            (FormatName::Text, _) => Ok(DataDescription { format: DataFormat::Text, schema: Schema::new(Vec::new())? }),
        }
    }

    fn check(&self, model: ModelKind, format: FormatName) -> Result<()> {
        if (model == ModelKind::Word2vec) != (format == FormatName::Text) {
            let expected = if model == ModelKind::Word2vec { "text, as word2vec reads" } else { "a format of rows" };
            let got = format.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
            return Err(Error::BadOption { option: "--format", expected, got });
        }
        let only = |given: bool, option, taker: FormatName, takers| match given && format != taker {
            true => Err(Error::MeaninglessOption { option, owner: owner(format).into(), takers }),
            false => Ok(()),
        };
        only(self.slots.is_some(), "--slots", FormatName::Multislot, "multislot files")?;
        only(self.dense.is_some(), "--dense", FormatName::Multislot, "multislot files")?;
        only(self.ids.is_some(), "--ids", FormatName::Criteo, "criteo files")?;
        if self.columns.is_some() && format == FormatName::Text {
            let (option, owner) = ("--columns", owner(format).to_owned());
            return Err(Error::MeaninglessOption { option, owner, takers: "formats of rows" });
        }
        if self.columns.is_some() && (self.slots.is_some() || self.dense.is_some()) {
            let second = if self.slots.is_some() { "--slots" } else { "--dense" };
            let remedy = "list all fields in the description, and leave the other option out";
            return Err(Error::Contradiction { first: "--columns", second, remedy });
        }
        Ok(())
    }
}

/// Parses a number of threads, 0 to 1024.
pub(crate) fn threads(text: &str) -> std::result::Result<usize, String> {
    text.parse().ok().filter(|&count| count <= 1024).ok_or_else(|| "expected a whole number from 0 to 1024".to_owned())
}

impl ReadOptions {
    /// The number of threads asked for; `None` if it was left to the default.
    pub(crate) fn asked_threads(&self) -> Option<usize> {
        (self.threads > 0).then_some(self.threads)
    }

    /// Threads that train and read.
    pub(crate) fn threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    /// The configuration of a dataset; `None` for text.
    pub(crate) fn config(&self, data: &DataDescription, files: &[PathBuf], batch: usize) -> Option<DatasetConfig> {
        let mut config = DatasetConfig::new(data.schema.clone(), data.engine_format()?)
            .files(files.iter().cloned())
            .batch_size(batch)
            .thread_num(self.threads())
            .on_bad_line(if self.skip_bad_lines { OnBadLine::Skip } else { OnBadLine::Stop });
        let is_click = |field: &Field| field.name == "label" && field.kind == FieldKind::FixedIds { length: 1 };
        if data.schema.fields().iter().any(is_click) {
            config = config.clicks("label");
        }
        if let Some(command) = &self.pipe_command {
            config = config.pipe_command(command);
        }
        Some(config)
    }
}
/// The format as the user writes it.
fn owner(format: FormatName) -> &'static str {
    match format {
        FormatName::Multislot => "`--format multislot`",
        FormatName::Criteo => "`--format criteo`",
        FormatName::Csv => "`--format csv`",
        FormatName::Libsvm => "`--format libsvm`",
        FormatName::Parquet => "`--format parquet`",
        FormatName::Text => "`--format text`",
    }
}
