//! Runs long work so that Ctrl-C can stop it.
//!
//! Python runs signal handlers on its main thread only, and only when that thread checks for signals. So the work runs on its own
//! thread without the GIL, while the calling thread waits and checks ten times per second.

use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, PyResult, Python};

/// Time between two checks for signals.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

/// How long to wait for work that was asked to stop. After that it continues unobserved.
const GRACE: Duration = Duration::from_secs(10);

/// Runs `work` and returns its result.
///
/// If a signal handler raises, this calls `stop`, waits until the work ends or `GRACE` has passed, and returns the exception.
/// The result of the work is lost then.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    stop: impl Fn(),
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = bounded(1);
    std::thread::Builder::new()
        .name("openfleet".to_owned())
        .spawn(move || drop(sender.send(work())))
        .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
    loop {
        match py.detach(|| receiver.recv_timeout(PERIOD)) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyErr::new::<PyRuntimeError, _>("the work panicked: this is a bug in OpenFleet"));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    stop();
                    let _ = py.detach(|| receiver.recv_timeout(GRACE));
                    return Err(raised);
                }
            }
        }
    }
}
