//! Reads a checkpoint without a program.

use openfleet_dist::storage::{Addresses, Opened};
use openfleet_engine::Tensor;
use openfleet_table::checkpoint::{self, StateElements};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::raise;
use crate::tensor::to_array;

/// Returns dense parameters and states by name, without the optimizer's state.
#[pyfunction]
pub(crate) fn read_dense<'py>(py: Python<'py>, address: &str) -> PyResult<Bound<'py, PyDict>> {
    let (manifest, dense, states) = py
        .detach(|| {
            let opened = Opened::new(&Addresses, address, "reading")?;
            let (dense, states) = (opened.read(checkpoint::read_dense)?, opened.read(checkpoint::read_states)?);
            Ok::<_, openfleet_dist::Error>((opened.manifest, dense, states))
        })
        .map_err(raise)?;
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
