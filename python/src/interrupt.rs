//! Long work that Ctrl-C can end.
//!
//! Python runs signal handlers on its main thread only, and only when that thread asks. So the work goes to a thread of its
//! own, without the GIL, while the caller's thread waits and asks ten times a second.

use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, PyResult, Python};

/// Between two looks at the signals.
const PERIOD: Duration = Duration::from_millis(100);

/// How long work that was asked to stop may take to do so, before it is left to itself.
const GRACE: Duration = Duration::from_secs(10);

/// Runs `work`. When a signal handler raises, `stop` is called and the exception passed on, once the work has ended or had
/// its time; whatever it gives then is lost.
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
                return Err(PyErr::new::<PyRuntimeError, _>("the work panicked: a bug of OpenFleet's"));
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
