//! A static graph, shared by the Python objects that add layers and the executors that run it.

use std::collections::BTreeMap;
use std::sync::Arc;

use openfleet_core::{Field, Schema};
use openfleet_engine::{DType, Dim, Exception, Minimize, Program as Graph, Result, VariableKind};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::raise;

/// Variables and ops in order. Python refers to variables by name.
#[pyclass(frozen, module = "openfleet._native")]
#[derive(Clone, Default)]
pub(crate) struct Program(pub(crate) Arc<Mutex<Graph>>);

/// Pairs of a parameter and its gradient, by name.
type Pairs = Vec<(String, String)>;

#[pymethods]
impl Program {
    #[new]
    fn new() -> Self {
        Program::default()
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.0.lock().seed
    }

    #[setter]
    fn set_seed(&self, seed: u64) {
        self.0.lock().seed = seed;
    }

    #[getter]
    fn is_trained(&self) -> bool {
        self.0.lock().is_trained()
    }

    #[getter]
    fn is_for_test(&self) -> bool {
        self.0.lock().is_for_test()
    }

    /// Returns a copy; with `for_test` one that evaluates and does not train.
    #[pyo3(name = "clone", signature = (for_test = false))]
    fn copy(&self, for_test: bool) -> Self {
        let graph = self.0.lock();
        Program(Arc::new(Mutex::new(if for_test { graph.clone_for_test() } else { graph.clone() })))
    }

    /// Returns a copy in which a data variable has other dimensions.
    fn with_data_shape(&self, name: &str, dims: Vec<i64>) -> PyResult<Self> {
        let graph = self.0.lock();
        let copy = graph.find(name).and_then(|var| graph.with_data_shape(var, &dims)).map_err(raise)?;
        Ok(Program(Arc::new(Mutex::new(copy))))
    }

    /// Returns the names of all variables, in order of creation.
    fn names(&self) -> Vec<String> {
        self.0.lock().variables().iter().map(|variable| variable.name.clone()).collect()
    }

    /// Returns the shape, dtype and kind of a variable, whether it has any number of ids per row, and whether gradients stop there.
    fn variable(&self, name: &str) -> PyResult<(Vec<i64>, &'static str, &'static str, bool, bool)> {
        let graph = self.0.lock();
        let variable = graph.variable(graph.find(name).map_err(raise)?);
        let shape = variable.shape.0.iter().map(|dim| match dim {
            Dim::Fixed(size) => *size as i64,
            Dim::PerRow(_) | Dim::Unknown => -1,
        });
        let kind = match variable.kind {
            VariableKind::Data => "data",
            VariableKind::Temporary => "temporary",
            VariableKind::Parameter(_) => "parameter",
            VariableKind::SparseTable(_) => "table",
            VariableKind::State => "state",
            VariableKind::Gradient { .. } => "gradient",
        };
        Ok((shape.collect(), dtype_name(variable.dtype), kind, variable.ragged, variable.stop_gradient))
    }

    /// Returns, per dimension, how many times the batch size it is; 0 for a fixed size.
    fn rows_in(&self, name: &str) -> PyResult<Vec<usize>> {
        let graph = self.0.lock();
        let variable = graph.variable(graph.find(name).map_err(raise)?);
        let times = |dim: &Dim| match dim {
            Dim::Fixed(_) | Dim::Unknown => 0,
            Dim::PerRow(times) => *times,
        };
        Ok(variable.shape.0.iter().map(times).collect())
    }

    /// Returns the ops in order: name, inputs and outputs.
    fn nodes(&self) -> Vec<(&'static str, Vec<String>, Vec<String>)> {
        let graph = self.0.lock();
        let named = |vars: &[openfleet_engine::Var]| vars.iter().map(|&var| graph.variable(var).name.clone()).collect();
        let nodes = graph.nodes().iter();
        nodes.map(|node| (node.op.operator().name(), named(&node.inputs), named(&node.outputs))).collect()
    }

    /// Adds the gradients of a loss. Returns the pairs of parameter and gradient.
    fn append_backward(&self, loss: &str, only: Option<Vec<String>>, frozen: Vec<String>) -> PyResult<Pairs> {
        let mut graph = self.0.lock();
        let pairs = (|| {
            let find = |names: &[String]| names.iter().map(|name| graph.find(name)).collect::<Result<Vec<_>>>();
            let (loss, only, frozen) = (graph.find(loss)?, only.as_deref().map(find).transpose()?, find(&frozen)?);
            graph.append_backward(loss, only.as_deref(), &frozen)
        })();
        Ok(named(&graph, pairs.map_err(raise)?))
    }

    /// Adds the gradients of a loss and their updates, by an optimizer described in JSON.
    fn minimize(&self, rule: &str, loss: &str) -> PyResult<Pairs> {
        let minimize = parse_minimize(rule)?;
        let mut graph = self.0.lock();
        let loss = graph.find(loss).map_err(raise)?;
        let pairs = minimize.minimize(&mut graph, loss).map_err(raise)?;
        Ok(named(&graph, pairs))
    }
}

impl Program {
    /// Returns the schema of batches that feed these data variables.
    pub(crate) fn schema(&self, names: &[String]) -> Result<Schema> {
        let graph = self.0.lock();
        let field = |name: &String| Ok(Field::new(name, graph.variable(graph.find(name)?).field_kind()));
        Ok(Schema::new(names.iter().map(field).collect::<Result<_>>()?)?)
    }
}

pub(crate) fn named(graph: &Graph, pairs: Vec<(openfleet_engine::Var, openfleet_engine::Var)>) -> Pairs {
    let name = |var| graph.variable(var).name.clone();
    pairs.into_iter().map(|(parameter, gradient)| (name(parameter), name(gradient))).collect()
}

pub(crate) fn parse_minimize(rule: &str) -> PyResult<Minimize> {
    serde_json::from_str(rule).map_err(|error| PyValueError::new_err(format!("not an optimizer: {error}")))
}

pub(crate) fn parse_exceptions(exceptions: &str) -> PyResult<BTreeMap<String, Exception>> {
    serde_json::from_str(exceptions)
        .map_err(|error| PyValueError::new_err(format!("not exceptions of an optimizer: {error}")))
}

pub(crate) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::I64 => "int64",
        DType::Bool => "bool",
    }
}

pub(crate) fn parse_dtype(name: &str) -> PyResult<DType> {
    match name {
        "float32" => Ok(DType::F32),
        "int64" => Ok(DType::I64),
        "bool" => Ok(DType::Bool),
        _ => {
            Err(PyValueError::new_err(format!("dtype cannot be `{name}`\n\nhint: choose `float32`, `int64` or `bool`")))
        }
    }
}
