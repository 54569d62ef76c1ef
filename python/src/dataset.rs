//! Datasets, streamed or kept in memory.

use std::path::PathBuf;
use std::sync::Arc;

use openfleet_engine::dataset::{
    Criteo, Dataset as Source, DatasetConfig, Format, InMemoryDataset, MultiSlot, OnBadLine, QueueDataset, Result,
};
use parking_lot::RwLock;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::error::raise;
use crate::interrupt;
use crate::program::Program;

/// Rows that can be gone over in batches.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct Dataset(pub(crate) Arc<RwLock<Kind>>);

pub(crate) enum Kind {
    Queue(QueueDataset),
    InMemory(InMemoryDataset),
}

impl Kind {
    pub(crate) fn source(&self) -> &dyn Source {
        match self {
            Kind::Queue(dataset) => dataset,
            Kind::InMemory(dataset) => dataset,
        }
    }
}

#[pymethods]
impl Dataset {
    /// The fields are data variables of a program, in the order in which they stand in a line.
    #[new]
    #[pyo3(signature = (program, use_var, files, *, in_memory, batch_size, thread_num, drop_last, pipe_command, skip_bad_lines, format))]
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
    ) -> PyResult<Self> {
        let schema = program.schema(&use_var).map_err(raise)?;
        let format = match format {
            "multislot" => Format::MultiSlot(MultiSlot::default()),
            "criteo" => Format::Criteo(Criteo::default()),
            _ => {
                return Err(PyValueError::new_err(format!(
                    "`format` cannot be `{format}`\n\nhint: choose `multislot` or `criteo`"
                )));
            }
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

    /// In memory only: the files that the next load reads.
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

    fn release_memory(&self) -> PyResult<()> {
        self.in_memory(|dataset| {
            dataset.release_memory();
            Ok(())
        })
    }

    /// Rows in memory; 0 for a dataset that streams.
    fn memory_rows(&self) -> usize {
        match &*self.0.read() {
            Kind::InMemory(dataset) => dataset.memory_rows(),
            Kind::Queue(_) => 0,
        }
    }

    #[getter]
    fn thread_num(&self) -> usize {
        self.0.read().source().thread_num()
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
        Kind::Queue(_) => Err(PyTypeError::new_err("a QueueDataset keeps nothing in memory")),
    }
}
