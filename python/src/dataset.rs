//! Datasets: streamed, in memory, or the words of a text.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use numpy::{IntoPyArray, PyArrayMethods};
use openfleet::columns::DataDescription;
use openfleet_core::{Batch, Column, FieldKind};
use openfleet_engine::dataset::{
    Criteo, Csv, Dataset as Source, DatasetConfig, Format, InMemoryDataset, LibSvm, MultiSlot, OnBadLine, Parquet,
    QueueDataset, Result, WordsConfig, WordsDataset,
};
use parking_lot::RwLock;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use serde::de::DeserializeOwned;

use crate::error::raise;
use crate::executor::signed;
use crate::fleet::Fleet;
use crate::interrupt;
use crate::program::Program;

/// Rows to train on, in batches.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct Dataset(pub(crate) Arc<RwLock<Kind>>);

pub(crate) enum Kind {
    Queue(QueueDataset),
    InMemory(InMemoryDataset),
    Words(WordsDataset),
}

impl Kind {
    pub(crate) fn source(&self) -> &dyn Source {
        match self {
            Kind::Queue(dataset) => dataset,
            Kind::InMemory(dataset) => dataset,
            Kind::Words(dataset) => dataset,
        }
    }
}

#[pymethods]
impl Dataset {
    /// Creates a dataset whose fields are data variables of a program, in the order of a line's fields for MultiSlot text.
    /// The format is described in JSON, or in a TOML file.
    #[new]
    #[pyo3(signature = (program, use_var, files, *, in_memory, batch_size, thread_num, drop_last, pipe_command, skip_bad_lines, format, description, description_file))]
    fn new(
        program: &Program,
        use_var: Vec<String>,
        files: Vec<PathBuf>,
        in_memory: bool,
        batch_size: usize,
        thread_num: usize,
        drop_last: bool,
        pipe_command: Option<String>,
        skip_bad_lines: bool,
        format: &str,
        description: Option<&str>,
        description_file: Option<PathBuf>,
    ) -> PyResult<Self> {
        let schema = program.schema(&use_var).map_err(raise)?;
        let format = match description_file {
            Some(path) => described_in(format, &path)?,
            None => described(format, description.unwrap_or("{}"))?,
        };
        let mut config = DatasetConfig::new(schema, format)
            .files(files)
            .batch_size(batch_size)
            .thread_num(thread_num)
            .drop_last(drop_last)
            .on_bad_line(if skip_bad_lines { OnBadLine::Skip } else { OnBadLine::Stop });
        if let Some(command) = pipe_command {
            config = config.pipe_command(command);
        }
        let kind = match in_memory {
            true => InMemoryDataset::new(config).map(Kind::InMemory),
            false => QueueDataset::new(config).map(Kind::Queue),
        };
        Ok(Dataset(Arc::new(RwLock::new(kind.map_err(raise)?))))
    }

    /// Reads a text as centre words with their contexts, for `word2vec`.
    #[staticmethod]
    #[pyo3(signature = (files, *, min_count, window, negatives, subsample, batch_size, thread_num, seed, part))]
    fn words(
        py: Python<'_>,
        files: Vec<PathBuf>,
        min_count: u64,
        window: usize,
        negatives: usize,
        subsample: f64,
        batch_size: usize,
        thread_num: usize,
        seed: u64,
        part: (usize, usize),
    ) -> PyResult<Self> {
        let config = WordsConfig { files, min_count, window, negatives, subsample, batch_size, thread_num, seed, part };
        let dataset = interrupt::run(py, || {}, move || WordsDataset::load(config))?.map_err(raise)?;
        Ok(Dataset(Arc::new(RwLock::new(Kind::Words(dataset)))))
    }

    /// Returns the vocabulary of a text, the most frequent word first; word i has id i. Empty for other datasets.
    fn vocabulary(&self) -> Vec<String> {
        match &*self.0.read() {
            Kind::Words(dataset) => dataset.words().to_vec(),
            Kind::Queue(_) | Kind::InMemory(_) => Vec::new(),
        }
    }

    /// Sets the files that the next load reads. In-memory datasets only.
    fn set_files(&self, files: Vec<PathBuf>) -> PyResult<()> {
        self.in_memory(|dataset| {
            dataset.set_files(files);
            Ok(())
        })
    }

    fn load_into_memory(&self, py: Python<'_>) -> PyResult<()> {
        self.long(py, InMemoryDataset::load_into_memory)
    }

    fn preload_into_memory(&self) -> PyResult<()> {
        self.in_memory(InMemoryDataset::preload_into_memory)
    }

    fn wait_preload_done(&self, py: Python<'_>) -> PyResult<()> {
        self.long(py, InMemoryDataset::wait_preload_done)
    }

    fn local_shuffle(&self, py: Python<'_>, seed: u64) -> PyResult<()> {
        self.long(py, move |dataset| dataset.local_shuffle(seed))
    }

    /// Distributes the rows of all workers among all workers. Every worker of the job calls it.
    fn global_shuffle(&self, py: Python<'_>, job: &Fleet, seed: u64) -> PyResult<()> {
        let dataset = self.0.clone();
        job.wait(py, move |fleet| match &mut *dataset.write() {
            Kind::InMemory(dataset) => fleet.global_shuffle(dataset, seed),
            Kind::Queue(_) | Kind::Words(_) => Ok(()),
        })
    }

    fn release_memory(&self) -> PyResult<()> {
        self.in_memory(|dataset| {
            dataset.release_memory();
            Ok(())
        })
    }

    /// Returns the number of rows in memory; 0 for other datasets.
    fn memory_rows(&self) -> usize {
        match &*self.0.read() {
            Kind::InMemory(dataset) => dataset.memory_rows(),
            Kind::Queue(_) | Kind::Words(_) => 0,
        }
    }

    #[getter]
    fn thread_num(&self) -> usize {
        self.0.read().source().thread_num()
    }

    /// Starts a pass whose batches Python reads.
    fn batches(&self) -> PyResult<Batches> {
        let dataset = self.0.clone();
        let kinds = dataset.read().source().schema().fields().iter().map(|field| field.kind).collect();
        let (sender, receiver) = bounded(BATCHES_AHEAD);
        // A pass borrows its dataset, so both stay on one thread.
        std::thread::Builder::new()
            .name("openfleet-batches".to_owned())
            .spawn(move || read_batches(&dataset, &sender))
            .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
        Ok(Batches { receiver, kinds, skipped_lines: AtomicU64::new(0) })
    }
}

/// Batches that are read before they are asked for.
const BATCHES_AHEAD: usize = 4;

type Read = Result<(Batch, u64)>;

/// Reads until the pass is over, or until nobody wants more. Sends each batch with the number of lines that were skipped.
fn read_batches(dataset: &RwLock<Kind>, sender: &Sender<Read>) {
    let dataset = dataset.read();
    let reader = match dataset.source().open() {
        Ok(reader) => reader,
        Err(error) => return drop(sender.send(Err(error))),
    };
    loop {
        let mut batch = Batch::default();
        let read = match reader.next(&mut batch) {
            Ok(true) => Ok((batch, reader.progress().skipped_lines)),
            // The end has no rows, but the final count.
            Ok(false) => Ok((Batch::default(), reader.progress().skipped_lines)),
            Err(error) => Err(error),
        };
        let is_last = read.as_ref().map_or(true, |(batch, _)| batch.rows == 0);
        if sender.send(read).is_err() || is_last {
            return;
        }
    }
}

/// One pass over a dataset, as arrays.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct Batches {
    receiver: Receiver<Read>,
    kinds: Vec<FieldKind>,
    skipped_lines: AtomicU64,
}

#[pymethods]
impl Batches {
    /// Returns one array per field: [B, D] of floats, [B, L] of integers, or the ids of all rows with [B + 1] offsets. `None` at the
    /// end.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let read = loop {
            match py.detach(|| self.receiver.recv_timeout(interrupt::PERIOD)) {
                Ok(read) => break read.map_err(raise)?,
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                // The end is a batch without rows, so the thread has panicked.
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err(
                        "the thread that reads has panicked: this is a bug in OpenFleet",
                    ));
                }
            }
        };
        let (batch, skipped_lines) = read;
        self.skipped_lines.store(skipped_lines, Ordering::Relaxed);
        if batch.rows == 0 {
            return Ok(None);
        }
        let arrays = batch.columns.into_iter().zip(&self.kinds).map(|(column, kind)| match (column, kind) {
            (Column::Floats { dim, values }, _) => Ok(values.into_pyarray(py).reshape([batch.rows, dim])?.into_any()),
            (Column::Ids { keys, .. }, FieldKind::FixedIds { length }) => {
                Ok(signed(keys).into_pyarray(py).reshape([batch.rows, *length])?.into_any())
            }
            (Column::Ids { offsets, keys }, _) => {
                let offsets: Vec<i64> = offsets.into_iter().map(i64::from).collect();
                Ok((signed(keys).into_pyarray(py), offsets.into_pyarray(py)).into_pyobject(py)?.into_any())
            }
        });
        arrays.collect::<PyResult<_>>().map(Some)
    }

    /// Returns the number of malformed lines that were skipped so far.
    #[getter]
    fn skipped_lines(&self) -> u64 {
        self.skipped_lines.load(Ordering::Relaxed)
    }
}

impl Dataset {
    fn in_memory(&self, call: impl FnOnce(&mut InMemoryDataset) -> Result<()>) -> PyResult<()> {
        on_memory(&self.0, call)
    }

    fn long(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut InMemoryDataset) -> Result<()> + Send + 'static,
    ) -> PyResult<()> {
        let dataset = self.0.clone();
        interrupt::run(py, || {}, move || on_memory(&dataset, call))?
    }
}

fn on_memory(dataset: &RwLock<Kind>, call: impl FnOnce(&mut InMemoryDataset) -> Result<()>) -> PyResult<()> {
    match &mut *dataset.write() {
        Kind::InMemory(dataset) => call(dataset).map_err(raise),
        Kind::Queue(_) | Kind::Words(_) => {
            Err(PyTypeError::new_err("only an InMemoryDataset can be loaded and shuffled"))
        }
    }
}

/// Parses a format from its description in JSON.
fn described(format: &str, description: &str) -> PyResult<Format> {
    Ok(match format {
        "multislot" => match parsed::<Slots>(format, description)?.slots {
            Some(slots) => Format::MultiSlot(MultiSlot::with_slots(slots)),
            None => Format::MultiSlot(MultiSlot::default()),
        },
        "criteo" => Format::Criteo(parsed::<Criteo>(format, description)?),
        "csv" => Format::Csv(Csv { columns: parsed(format, description)? }),
        "libsvm" => Format::LibSvm(parsed::<LibSvm>(format, description)?),
        "parquet" => Format::Parquet(Parquet { columns: parsed(format, description)? }),
        _ => return Err(unknown(format)),
    })
}

/// The slots of MultiSlot text. A program may use only some of them.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Slots {
    slots: Option<Vec<String>>,
}

fn parsed<T: DeserializeOwned>(format: &str, description: &str) -> PyResult<T> {
    serde_json::from_str(description)
        .map_err(|error| PyValueError::new_err(format!("`columns` does not describe {format} files: {error}")))
}

/// Reads a format from its description in a TOML file, as `openfleet train --columns` does.
fn described_in(format: &str, path: &Path) -> PyResult<Format> {
    let description = match format {
        "multislot" => DataDescription::multislot_of(path),
        "criteo" => DataDescription::criteo_of(path),
        "csv" => DataDescription::csv_of(path),
        "libsvm" => DataDescription::libsvm_of(path),
        "parquet" => DataDescription::parquet_of(path),
        _ => return Err(unknown(format)),
    };
    description.map_err(raise)?.engine_format().ok_or_else(|| unknown(format))
}

fn unknown(format: &str) -> PyErr {
    let hint = "choose `multislot`, `criteo`, `csv`, `libsvm` or `parquet`";
    PyValueError::new_err(format!("`format` cannot be `{format}`\n\nhint: {hint}"))
}
