//! `openfleet._native`: the compiled half of the Python package.
//!
//! Thin bindings: one file per noun, with the names of the Rust crates, and no behaviour of their own beyond three things that
//! Python needs. Arrays become tensors and back (`tensor`), errors become exceptions (`error`), and long work runs without the GIL
//! and can be interrupted (`interrupt`). Variables are passed by name, optimizers and attributes as JSON. The API that users call is
//! in `openfleet/*.py` beside this folder. The only process-wide state is the default programs, the global scope and the one
//! `fleet`, all in Python, and the channel of log events (`log`).

mod checkpoint;
mod dataset;
mod error;
mod executor;
#[cfg(unix)]
mod external;
mod fleet;
mod interrupt;
mod launch;
mod log;
mod net;
mod onnx;
mod predictor;
mod program;
mod scope;
mod strategy;
mod tensor;

use pyo3::prelude::*;

#[pymodule]
fn _native(py: Python<'_>, module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", py.get_type::<error::OpenFleetError>())?;
    module.add("DataError", py.get_type::<error::DataError>())?;
    module.add("ProgramError", py.get_type::<error::ProgramError>())?;
    module.add("ServerError", py.get_type::<error::ServerError>())?;
    module.add("RankError", py.get_type::<error::RankError>())?;
    module.add("RoleError", py.get_type::<error::RoleError>())?;
    module.add("CheckpointError", py.get_type::<error::CheckpointError>())?;
    module.add("OrderError", py.get_type::<error::OrderError>())?;
    module.add_class::<dataset::Batches>()?;
    module.add_class::<dataset::Dataset>()?;
    module.add_class::<executor::Executor>()?;
    module.add_class::<executor::RunReport>()?;
    #[cfg(unix)]
    {
        module.add_class::<external::ChildProcess>()?;
        module.add_class::<external::ExternalJob>()?;
        module.add_class::<external::PortReservation>()?;
        module.add_function(wrap_pyfunction!(external::shell_exit_code, module)?)?;
    }
    module.add_class::<fleet::DistributedOptimizer>()?;
    module.add_class::<fleet::Fleet>()?;
    module.add_class::<fleet::RoleMaker>()?;
    module.add_class::<net::Net>()?;
    module.add_class::<predictor::Predictor>()?;
    module.add_class::<program::Program>()?;
    module.add_class::<scope::Scope>()?;
    module.add_class::<strategy::Options>()?;
    module.add_function(wrap_pyfunction!(checkpoint::read_dense, module)?)?;
    module.add_function(wrap_pyfunction!(launch::fleetrun, module)?)?;
    module.add_function(wrap_pyfunction!(launch::openfleet, module)?)?;
    module.add_function(wrap_pyfunction!(log::flush_log, module)?)?;
    module.add_function(wrap_pyfunction!(log::log_to, module)?)?;
    module.add_function(wrap_pyfunction!(onnx::write_onnx, module)?)?;
    module.add_function(wrap_pyfunction!(strategy::nearest, module)?)
}
