//! Scopes: values by name.

use std::sync::Arc;

use openfleet_engine::{Dim, Scope as Values};
use pyo3::prelude::*;

use crate::error::raise;
use crate::program::Program;
use crate::tensor::{from_array, to_array};

/// Values by name, shared by executors.
#[pyclass(frozen, module = "openfleet._native")]
#[derive(Clone, Default)]
pub(crate) struct Scope(pub(crate) Arc<Values>);

#[pymethods]
impl Scope {
    #[new]
    fn new() -> Self {
        Scope::default()
    }

    /// Returns all names, sorted.
    fn names(&self) -> Vec<String> {
        self.0.names()
    }

    /// Returns a copy of a value; `None` if it does not exist or is a sparse table.
    fn get<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.0.get(name).map(|tensor| to_array(py, tensor)).transpose()
    }

    /// Creates or replaces a value. An existing value keeps its dimensions and dtype.
    fn set(&self, name: &str, array: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.set(name, from_array(array)?).map_err(raise)
    }

    /// Returns the rows of a sparse table with a known number of ids, as an array.
    fn table_values<'py>(&self, py: Python<'py>, program: &Program, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let graph = program.0.lock();
        let spec = graph.sparse_specs().into_iter().find(|(table, _)| table == name);
        let rows = graph.find(name).ok().and_then(|var| match graph.variable(var).shape.0.first() {
            Some(&Dim::Fixed(rows)) if rows > 0 => Some(rows),
            _ => None,
        });
        let (Some((_, spec)), Some(rows)) = (spec, rows) else { return Ok(None) };
        let values = self.0.table_values(name, spec, rows).map_err(raise)?;
        to_array(py, values).map(Some)
    }

    /// Returns the number of rows of a sparse table; `None` if no sparse table has this name.
    fn rows(&self, name: &str) -> Option<usize> {
        self.0.sparse(name).map(|table| table.len())
    }

    /// Removes a value.
    fn erase(&self, name: &str) {
        self.0.remove(name);
    }

    /// Removes all values.
    fn clear(&self) {
        self.0.clear();
    }
}
