//! Converts tensors to NumPy arrays and back.

use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use openfleet_engine::{Elements, Tensor};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::raise;

/// Converts a tensor to an array without a copy: the array takes over the elements.
pub(crate) fn to_array<'py>(py: Python<'py>, tensor: Tensor) -> PyResult<Bound<'py, PyAny>> {
    let dims = tensor.dims().to_vec();
    Ok(match tensor.into_elements() {
        Elements::F32(values) => values.into_pyarray(py).reshape(dims)?.into_any(),
        Elements::I64(values) => values.into_pyarray(py).reshape(dims)?.into_any(),
    })
}

/// Copies an array of `float32` or `int64` into a tensor.
pub(crate) fn from_array(array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if let Ok(floats) = array.cast::<PyArrayDyn<f32>>() {
        let (dims, values) = elements(floats.readonly())?;
        return Tensor::from_f32(&dims, values).map_err(raise);
    }
    if let Ok(ints) = array.cast::<PyArrayDyn<i64>>() {
        let (dims, values) = elements(ints.readonly())?;
        return Tensor::from_i64(&dims, values).map_err(raise);
    }
    Err(PyTypeError::new_err("expected an array of float32 or int64"))
}

fn elements<T: numpy::Element + Copy>(array: PyReadonlyArrayDyn<'_, T>) -> PyResult<(Vec<usize>, Vec<T>)> {
    Ok((array.shape().to_vec(), array.as_slice()?.to_vec()))
}
