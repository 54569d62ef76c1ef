//! Predicts with a saved model, from any number of threads.

use std::sync::Arc;

use openfleet_engine::Predictor as Model;
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::error::raise;
use crate::executor::{Arrays, SlotArrays, feed_of};
use crate::interrupt;
use crate::program::Program;
use crate::tensor::to_array;

/// A saved model, ready to predict.
#[pyclass(frozen, module = "openfleet._native")]
pub(crate) struct Predictor(Model);

#[pymethods]
impl Predictor {
    /// Opens an inference model and verifies its checksums.
    #[new]
    fn new(py: Python<'_>, address: String) -> PyResult<Self> {
        let open = move || Model::open(&address).map_err(raise);
        Ok(Predictor(interrupt::run(py, || {}, open)??))
    }

    /// Returns a copy of the program that it runs, which is not the program that was trained.
    fn program(&self) -> Program {
        Program(Arc::new(Mutex::new(self.0.model().program.clone())))
    }

    fn feeds(&self) -> Vec<String> {
        self.0.feeds().to_vec()
    }

    fn targets(&self) -> Vec<String> {
        self.0.targets().into_iter().map(str::to_owned).collect()
    }

    /// Computes the targets for one batch. Floats and integers are flat arrays; a slot is the number of ids per row and the ids of
    /// all rows.
    fn predict<'py>(
        &self,
        py: Python<'py>,
        floats: Vec<Arrays<'py, f32>>,
        ints: Vec<Arrays<'py, i64>>,
        slots: Vec<SlotArrays<'py>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let feed = feed_of(&self.0.model().program, floats, ints, slots)?;
        let values = py.detach(|| self.0.predict(feed)).map_err(raise)?;
        values.into_iter().map(|tensor| to_array(py, tensor)).collect()
    }
}
