//! The only place that converts errors to Python exceptions.
//!
//! `openfleet.Error` is the base class of errors that only OpenFleet has; a missing file, a bad argument and a wrong type are
//! Python's own exceptions. The text is the report that the programs print: the message, its causes, and the hint.

use openfleet::Error;
use openfleet::job_file::RESTART_EXIT_CODE;
use openfleet_core::error::report;
use openfleet_dist::Error as DistError;
use openfleet_engine::Error as EngineError;
use openfleet_engine::dataset::Error as DatasetError;
use openfleet_table::Error as TableError;
use pyo3::create_exception;
use pyo3::exceptions::{
    PyException, PyFileExistsError, PyFileNotFoundError, PyNotImplementedError, PyOSError, PyPermissionError,
    PySystemExit, PyValueError,
};
use pyo3::types::PyAnyMethods;
use pyo3::{PyErr, Python};

create_exception!(openfleet, OpenFleetError, PyException, "Base class of the errors of OpenFleet.");
create_exception!(
    openfleet,
    DataError,
    OpenFleetError,
    "Data cannot be read: a malformed line, a failed pipe command."
);
create_exception!(
    openfleet,
    ProgramError,
    OpenFleetError,
    "A program cannot run: a parameter has no value, or a value is not finite."
);
create_exception!(openfleet, ServerError, OpenFleetError, "A server does not answer, refuses a request or fails.");
create_exception!(
    openfleet,
    RankError,
    OpenFleetError,
    "A rank of a collective job is missing, is lost, or does something else than the other ranks."
);
create_exception!(
    openfleet,
    RoleError,
    OpenFleetError,
    "The role of a process is unknown, or a call belongs to another role."
);
create_exception!(
    openfleet,
    CheckpointError,
    OpenFleetError,
    "A checkpoint is damaged, or belongs to another program."
);
create_exception!(openfleet, OrderError, OpenFleetError, "A call was made too early or too late.");

/// Converts an error to a Python exception.
pub(crate) fn raise(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let text = report(&error);
    if error.is_recall() {
        // Not an error of the script: the launcher restarts it, and it resumes.
        #[allow(
            clippy::print_stderr,
            reason = "the user reads this line; Python prints nothing for the SystemExit that follows"
        )]
        {
            eprintln!("{text}");
        }
        // The exit hook must not treat this as a successful end.
        let noted = Python::attach(|py| py.import("openfleet.fleet._ending")?.call_method0("fail").map(drop));
        return noted.err().unwrap_or_else(|| PySystemExit::new_err(RESTART_EXIT_CODE));
    }
    match &error {
        Error::Engine(error) => engine(error, text),
        Error::Io { source, .. } => io(source.kind(), text),
        Error::MeaninglessOption { .. }
        | Error::MissingOption { .. }
        | Error::BadOption { .. }
        | Error::Contradiction { .. }
        | Error::Fields { .. }
        | Error::Pattern { .. }
        | Error::Columns { .. }
        | Error::Synthetic(_) => PyValueError::new_err(text),
        Error::Dist(error) => dist(error, text),
        Error::ServersAbsent { .. } | Error::Unwelcome { .. } | Error::WaitInterrupted => ServerError::new_err(text),
        Error::Role(_) | Error::WrongRole { .. } => RoleError::new_err(text),
        Error::TooEarly { .. } | Error::TooLate { .. } => OrderError::new_err(text),
        Error::Unavailable { .. } => PyNotImplementedError::new_err(text),
        _ => OpenFleetError::new_err(text),
    }
}

fn engine(error: &EngineError, text: String) -> PyErr {
    match error {
        EngineError::Dataset(error) => dataset(error, text),
        EngineError::Communicator(error) => dist(error, text),
        EngineError::NotInitialized { .. }
        | EngineError::ScopeMismatch { .. }
        | EngineError::ServerMismatch { .. }
        | EngineError::NotMinimized
        | EngineError::Value { .. }
        | EngineError::NotFinite { .. }
        | EngineError::NotFiniteGradient { .. }
        | EngineError::ThreadPanicked { .. }
        | EngineError::Threads { .. } => ProgramError::new_err(text),
        // All other errors are about the value of an argument.
        _ => PyValueError::new_err(text),
    }
}

fn dist(error: &DistError, text: String) -> PyErr {
    match error {
        DistError::Checkpoint { source: TableError::NotACheckpoint { .. }, .. } => PyFileNotFoundError::new_err(text),
        DistError::Checkpoint { source: TableError::CheckpointExists { .. }, .. } => PyFileExistsError::new_err(text),
        DistError::Checkpoint { source: TableError::Storage { source, .. }, .. } => io(source.kind, text),
        DistError::Checkpoint { .. } => CheckpointError::new_err(text),
        DistError::NoSuchStorage { .. }
        | DistError::NotBuilt { .. }
        | DistError::NotInGeo { .. }
        | DistError::NotInLocalSgd { .. }
        | DistError::NoMpi => PyValueError::new_err(text),
        DistError::RanksAbsent { .. }
        | DistError::RankRefused { .. }
        | DistError::RankLost { .. }
        | DistError::RanksDisagree { .. }
        | DistError::RowsDiffer { .. }
        | DistError::MpiThreads { .. }
        | DistError::MpiRank { .. }
        | DistError::MpiEnded => RankError::new_err(text),
        DistError::StorageSetup { .. } => PyOSError::new_err(text),
        DistError::NothingToSave | DistError::LoadWhileTraining | DistError::LoadOverCopies => {
            OrderError::new_err(text)
        }
        _ => ServerError::new_err(text),
    }
}

fn dataset(error: &DatasetError, text: String) -> PyErr {
    match error {
        DatasetError::MissingFile { .. } | DatasetError::NoMatch { .. } => PyFileNotFoundError::new_err(text),
        DatasetError::EmptyFileList
        | DatasetError::NoRows { .. }
        | DatasetError::UnknownSlot { .. }
        | DatasetError::WrongKind { .. }
        | DatasetError::BadFormat { .. }
        | DatasetError::BadSetting { .. } => PyValueError::new_err(text),
        DatasetError::WrongState { .. } => OrderError::new_err(text),
        _ => DataError::new_err(text),
    }
}

fn io(kind: std::io::ErrorKind, text: String) -> PyErr {
    match kind {
        std::io::ErrorKind::NotFound => PyFileNotFoundError::new_err(text),
        std::io::ErrorKind::PermissionDenied => PyPermissionError::new_err(text),
        _ => PyOSError::new_err(text),
    }
}
