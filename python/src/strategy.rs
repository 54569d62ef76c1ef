//! Options that a script sets about how its job trains.

use openfleet_core::error::did_you_mean;
use openfleet_core::strategy::{OptionValue, Strategy, StrategyOptions};
use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyString};

use crate::error::raise;

/// Options by name. An option is absent until it is set.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct Options(pub(crate) Mutex<StrategyOptions>);

#[pymethods]
impl Options {
    /// Creates the options of a `DistributedStrategy`, or of a `DistributeTranspilerConfig`.
    #[new]
    #[pyo3(signature = (transpiler = false))]
    fn new(transpiler: bool) -> Self {
        Options(Mutex::new(match transpiler {
            true => StrategyOptions::transpiler_config(),
            false => StrategyOptions::distributed_strategy(),
        }))
    }

    #[staticmethod]
    fn names() -> Vec<&'static str> {
        StrategyOptions::NAMES.to_vec()
    }

    /// Names of the options that only a job with servers uses.
    #[staticmethod]
    fn names_with_servers() -> Vec<&'static str> {
        StrategyOptions::WITH_SERVERS.to_vec()
    }

    fn set(&self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = if value.is_instance_of::<PyBool>() {
            OptionValue::Bool(value.extract()?)
        } else if value.is_instance_of::<PyInt>() {
            OptionValue::Int(value.extract()?)
        } else if value.is_instance_of::<PyString>() {
            OptionValue::Text(value.extract()?)
        } else {
            let got = value.get_type().name()?;
            return Err(PyTypeError::new_err(format!("`{name}` expects a bool, an int or a str, got {got}")));
        };
        self.0.lock().set(name, value).map_err(raise)
    }

    /// Returns the value of an option, or `None` if it is not set.
    fn get(&self, py: Python<'_>, name: &str) -> PyResult<Option<Py<PyAny>>> {
        Ok(match self.0.lock().get(name) {
            None => None,
            Some(OptionValue::Bool(value)) => Some(value.into_pyobject(py)?.to_owned().into_any().unbind()),
            Some(OptionValue::Int(value)) => Some(value.into_pyobject(py)?.into_any().unbind()),
            Some(OptionValue::Text(value)) => Some(value.into_pyobject(py)?.into_any().unbind()),
        })
    }

    fn copy(&self) -> Self {
        Options(Mutex::new(self.0.lock().clone()))
    }

    /// Describes the resulting mode in one line. Fails if options contradict each other.
    fn describe(&self) -> PyResult<String> {
        let options = self.0.lock();
        let strategy = match options.is_collective() {
            true => Strategy::resolve_collective(&options),
            false => Strategy::resolve(&options),
        };
        Ok(strategy.map_err(raise)?.to_string())
    }
}

/// Returns a hint that names the most similar of the known names.
#[pyfunction]
pub(crate) fn nearest(name: &str, known: Vec<String>) -> PyResult<String> {
    if known.is_empty() {
        return Err(PyValueError::new_err("no names to choose from"));
    }
    Ok(did_you_mean(name, known.iter().map(String::as_str)).into_owned())
}
