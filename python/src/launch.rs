//! The programs `fleetrun` and `openfleet`, called by the commands that the wheel installs.

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;

/// Runs `fleetrun` with these arguments, the program's name first; returns its exit code.
#[cfg(unix)]
#[pyfunction]
pub(crate) fn fleetrun(py: Python<'_>, arguments: Vec<OsString>, python: PathBuf, directory: Option<PathBuf>) -> u8 {
    let launcher = ::openfleet::launch::Launcher { python: Some(python), directory };
    py.detach(|| launcher.main(arguments))
}

/// The launcher exists on Unix only.
#[cfg(not(unix))]
#[pyfunction]
pub(crate) fn fleetrun(arguments: Vec<OsString>, python: PathBuf, directory: Option<PathBuf>) -> PyResult<u8> {
    drop((arguments, python, directory));
    Err(pyo3::exceptions::PyNotImplementedError::new_err("`fleetrun` runs on Unix only"))
}

/// Runs `openfleet` with these arguments, the program's name first; returns its exit code.
#[pyfunction]
pub(crate) fn openfleet(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| ::openfleet::cli::main(arguments))
}
