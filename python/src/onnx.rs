//! Exports a saved model as an ONNX graph.

use openfleet_engine::onnx::{OnnxOptions, write};
use pyo3::prelude::*;

use crate::error::raise;
use crate::interrupt;

/// Writes `model.onnx` beside an inference model.
#[pyfunction]
pub(crate) fn write_onnx(py: Python<'_>, address: String, inline_bytes: u64, pooled_inputs: bool) -> PyResult<()> {
    let export = move || write(&address, &OnnxOptions { inline_bytes, pooled_inputs }).map_err(raise);
    interrupt::run(py, || {}, export)?
}
