//! Reading what is in a checkpoint, without a program.

use openfleet_dist::Error;
use openfleet_dist::storage::{Directories, Stores};
use openfleet_engine::Tensor;
use openfleet_table::checkpoint::{self, StateElements};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::raise;
use crate::tensor::to_array;

/// Dense parameters and states by name, without the optimizer's state.
#[pyfunction]
pub(crate) fn read_dense<'py>(py: Python<'py>, address: &str) -> PyResult<Bound<'py, PyDict>> {
    let failed = |source| {
        raise(openfleet::Error::from(Error::Checkpoint { action: "reading", address: address.into(), source }))
    };
    let storage = Directories.open(address).map_err(raise)?;
    let (manifest, dense, states) = py
        .detach(|| {
            let manifest = checkpoint::read_manifest(storage.as_ref())?;
            let dense = checkpoint::read_dense(storage.as_ref(), &manifest)?;
            let states = checkpoint::read_states(storage.as_ref(), &manifest)?;
            Ok((manifest, dense, states))
        })
        .map_err(failed)?;
    let arrays = PyDict::new(py);
    for (name, parameter) in dense {
        if let Some(entry) = manifest.dense.iter().find(|entry| entry.name == name) {
            let tensor = Tensor::from_f32(&entry.spec.shape, parameter.values).map_err(raise)?;
            arrays.set_item(name, to_array(py, tensor)?)?;
        }
    }
    for (name, state) in states {
        let tensor = match state.elements {
            StateElements::F32(floats) => Tensor::from_f32(&state.dims, floats),
            StateElements::I64(counts) => Tensor::from_i64(&state.dims, counts),
        };
        arrays.set_item(name, to_array(py, tensor.map_err(raise)?)?)?;
    }
    Ok(arrays)
}
